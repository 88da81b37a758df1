"""Choose the launches of a layer: the device's measured table, else a rule; then made to fit the largest rank.

Nothing depends on the number of tokens: a job's bits must not change with what else stands in the microbatch.
"""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, fields, is_dataclass, replace
from importlib import resources
from typing import Any, TypeVar, get_type_hints

import torch

from multigraft_kernels.launch.choices import (
    AddedLaunch,
    GradOutputLaunch,
    InputLaunch,
    LaunchChoice,
    PortableLaunch,
    ShrinkLaunch,
)
from multigraft_kernels.launch.device_class import find_device_class

TABLE_VERSION = 1

Choice = TypeVar("Choice")


def choose_launch(x: torch.Tensor, weight: torch.Tensor, b: torch.Tensor, max_rank: int) -> LaunchChoice:
    """Choose the launches for x [T, K], weight [N, K] and B [slots, N, maxRank] with adapters up to `max_rank`."""
    N, K = weight.shape
    name, hopper = find_device_class(x.device)
    choice = _choose(name, K, N)
    if not (hopper and fits_tma(x, weight)):
        choice = replace(choice, path="portable")
    elif choice.path == "hopper" and b.shape[2] % 8:  # its kernels read B by TMA too
        choice = replace(choice, path="mixed")
    portable = fit_rank(choice.portable, max_rank)
    if x.element_size() == 4 and name != "cpu":
        portable = fit_wide_elements(portable)
    return replace(choice, portable=portable)


def fits_tma(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Say whether the Hopper GEMM covers the layer: a 16-bit dtype, and rows that start on 16 bytes."""
    N, K = weight.shape
    return (
        x.dtype in (torch.bfloat16, torch.float16)
        and K % 8 == 0
        and N % 8 == 0
        and weight.stride(1) == 1
        and weight.stride(0) % 8 == 0
        and weight.data_ptr() % 16 == 0
    )


def fit_rank(launch: PortableLaunch, max_rank: int) -> PortableLaunch:
    """Shrink the other blocks where ranks above 64 need more shared memory and accumulators."""
    if max_rank <= 64:
        return launch
    part = 2 if max_rank <= 128 else 4
    return replace(
        launch,
        shrink=replace(launch.shrink, block_t=32, block_k=64, num_warps=4, num_stages=2),
        grad_output=replace(launch.grad_output, block_t=32, block_n=256 // part, num_warps=8, num_stages=2),
        input=replace(launch.input, block_t=32, block_k=256 // part, num_warps=8, num_stages=2),
    )


def fit_wide_elements(launch: PortableLaunch) -> PortableLaunch:
    """Halve what the tables, measured in 16 bits, keep in shared memory: fp32 takes twice as much of it."""
    return replace(
        launch,
        shrink=replace(launch.shrink, num_stages=2),
        grad_output=replace(launch.grad_output, block_n=min(launch.grad_output.block_n, 128), num_stages=2),
        input=replace(launch.input, num_stages=2),
    )


def build_default(name: str) -> LaunchChoice:
    """Build the rule for devices without a table; `name` is the class that `find_device_class` gives."""
    if name == "cpu":  # Triton's interpreter: small tiles, for tests
        return LaunchChoice(
            "portable",
            PortableLaunch(
                ShrinkLaunch(block_t=32, block_k=32, min_block_r=16),
                GradOutputLaunch(block_t=32, block_n=32, chunk_rows=64, min_block_r=16),
                InputLaunch(block_t=32, block_k=32, chunk_rows=64, min_block_r=16),
                AddedLaunch(block_o=64, block_r=16),
            ),
        )
    if name in ("h100", "h200", "hopper"):
        # All-Gluon ("hopper") is chosen by a table alone, that is where the tuner has seen it run and win.
        return LaunchChoice("mixed")
    # Below Hopper a product's left operand may have 16 rows, and there is less shared memory (99 KiB on sm_86, sm_89)
    return LaunchChoice(
        "portable",
        PortableLaunch(
            ShrinkLaunch(block_k=64, min_block_r=16),
            GradOutputLaunch(block_t=32, min_block_r=16),
            InputLaunch(block_t=32, min_block_r=16),
        ),
    )


@functools.cache
def _choose(name: str, K: int, N: int) -> LaunchChoice:
    default = build_default(name)
    entries = load_table(name)
    if not entries:
        return default
    # The nearest measured shape, by ratio of sides: tiles depend on sizes in steps, so a near shape is a good guess.
    nearest = min(entries, key=lambda entry: max(_ratio(entry["K"], K), _ratio(entry["N"], N)))
    return parse_choice(LaunchChoice, nearest["launch"])


def _ratio(a: int, b: int) -> float:
    return max(a, b) / min(a, b)


def load_table(name: str) -> list[dict[str, Any]]:
    """Load the measured entries of a device class; none if there is no table of this version."""
    path = resources.files("multigraft_kernels.launch") / "tables" / f"{name}.json"
    if not path.is_file():
        return []
    table = json.loads(path.read_text())
    return list(table["entries"]) if table["version"] == TABLE_VERSION else []


def parse_choice(kind: type[Choice], values: dict[str, Any]) -> Choice:
    """Build a choice from its JSON form; what a table leaves out keeps its default.

    Raises:
        ValueError: If a field is unknown.
    """
    kinds = get_type_hints(kind)
    unknown = set(values) - {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if unknown:
        raise ValueError(f"launch table: {kind.__name__} has no fields {sorted(unknown)}; allowed are {sorted(kinds)}")
    parts = {
        name: parse_choice(kinds[name], value) if is_dataclass(kinds[name]) else value for name, value in values.items()
    }
    return kind(**parts)


def dump_choice(choice: LaunchChoice) -> dict[str, Any]:
    """Give the JSON form of a choice."""
    return asdict(choice)
