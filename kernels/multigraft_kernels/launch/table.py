"""Choose the launches of a layer: the device's measured table, else a rule; then made to fit the largest rank.

Nothing depends on the number of tokens: a job's bits must not change with what else stands in the microbatch.
"""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, fields, replace
from importlib import resources
from typing import Any

import torch

from multigraft_kernels.launch.choices import (
    AddedLaunch,
    GradOutputLaunch,
    HopperGemmLaunch,
    InputLaunch,
    LaunchChoice,
    ShrinkLaunch,
)
from multigraft_kernels.launch.device_class import find_device_class

TABLE_VERSION = 1

_PARTS: dict[str, type] = {
    "shrink": ShrinkLaunch,
    "grad_output": GradOutputLaunch,
    "input": InputLaunch,
    "added": AddedLaunch,
    "gemm_forward": HopperGemmLaunch,
    "gemm_backward": HopperGemmLaunch,
}


def choose_launch(x: torch.Tensor, weight: torch.Tensor, max_rank: int) -> LaunchChoice:
    """Choose the launches for x [T, K] and weight [N, K] with adapters up to `max_rank`."""
    N, K = weight.shape
    name, hopper = find_device_class(x.device)
    choice = _choose(name, K, N)
    if not (hopper and fits_tma(x, weight)):
        choice = replace(choice, base_forward="added", base_backward="added")
    return fit_rank(choice, max_rank)


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


def fit_rank(choice: LaunchChoice, max_rank: int) -> LaunchChoice:
    """Shrink the other blocks where ranks above 64 need more shared memory and accumulators."""
    if max_rank <= 64:
        return choice
    part = 2 if max_rank <= 128 else 4
    return replace(
        choice,
        shrink=replace(choice.shrink, block_t=32, block_k=64, num_warps=4, num_stages=2),
        grad_output=replace(choice.grad_output, block_t=32, block_n=256 // part, num_warps=8, num_stages=2),
        input=replace(choice.input, block_t=32, block_k=256 // part, num_warps=8, num_stages=2),
    )


def build_default(name: str) -> LaunchChoice:
    """Build the rule for devices without a table; `name` is the class that `find_device_class` gives."""
    if name == "cpu":  # Triton's interpreter: small tiles, for tests
        return LaunchChoice(
            "added",
            "added",
            ShrinkLaunch(block_t=32, block_k=32, min_block_r=16),
            GradOutputLaunch(block_t=32, block_n=32, chunk_rows=64, min_block_r=16),
            InputLaunch(block_t=32, block_k=32, chunk_rows=64, min_block_r=16),
            AddedLaunch(block_o=64, block_r=16),
        )
    if name in ("h100", "h200", "hopper"):
        return LaunchChoice("hopper", "hopper")
    # Below Hopper a product's left operand may have 16 rows, and there is less shared memory (99 KiB on sm_86 and sm_89)
    return LaunchChoice(
        "added",
        "added",
        ShrinkLaunch(block_k=64, min_block_r=16),
        GradOutputLaunch(block_t=32, min_block_r=16),
        InputLaunch(block_t=32, min_block_r=16),
    )


@functools.cache
def _choose(name: str, K: int, N: int) -> LaunchChoice:
    default = build_default(name)
    entries = load_table(name)
    if not entries:
        return default
    # The nearest measured shape, by ratio of sides: tiles depend on sizes in steps, so a near shape is a good guess.
    nearest = min(entries, key=lambda entry: max(_ratio(entry["K"], K), _ratio(entry["N"], N)))
    return parse_choice(nearest["launch"])


def _ratio(a: int, b: int) -> float:
    return max(a, b) / min(a, b)


def load_table(name: str) -> list[dict[str, Any]]:
    """Load the measured entries of a device class; none if there is no table of this version."""
    path = resources.files("multigraft_kernels.launch") / "tables" / f"{name}.json"
    if not path.is_file():
        return []
    table = json.loads(path.read_text())
    return list(table["entries"]) if table["version"] == TABLE_VERSION else []


def parse_choice(values: dict[str, Any]) -> LaunchChoice:
    """Build a choice from its JSON form.

    Raises:
        ValueError: If a field is unknown.
    """
    unknown = set(values) - {field.name for field in fields(LaunchChoice)}
    if unknown:
        raise ValueError(f"launch table: unknown fields {sorted(unknown)}")
    parts = {name: kind(**values[name]) for name, kind in _PARTS.items() if name in values}
    return LaunchChoice(values["base_forward"], values["base_backward"], **parts)


def dump_choice(choice: LaunchChoice) -> dict[str, Any]:
    """Give the JSON form of a choice."""
    return asdict(choice)
