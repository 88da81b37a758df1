"""Gain map: where adapters that share one run are faster than one adapter after another, and where they are not.

Each cell is one optimizer step of every adapter: `adapters` of them with `tokens` each. Together, their tokens are
packed into common microbatches; one after another, each runs its own and steps, on a pool with one slot. Both are ours,
so that the map shows what sharing does and nothing else.

The base has some of Llama-3.1-8B's 32 layers and the same share of its vocabulary, so that layers and head keep their
proportion; a step of the whole model takes 32 / layers times as long, but for the optimizer's fixed part.

    python tests/benchmark/gpu/bench_gain_map.py --out runs/gain_map
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_8b
import numpy as np
import torch
import transformers

from multigraft.planner.horizon import plan_horizon
from multigraft.planner.plan import GlobalBatch, JobWork, Microbatch, PlanLimits, SampleRef
from multigraft_trainer.adapters.optimizer import AdapterOptimizer, OptimizerOptions
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.adapters.slots import AdapterOptions
from multigraft_trainer.backends.attention import ATTENTION_NAME
from multigraft_trainer.backends.packed import PackedMicrobatch
from multigraft_trainer.backends.transformers_backend import TransformersBackend
from multigraft_trainer.engine.pack_microbatch import SegmentSource, pack_microbatch
from multigraft_trainer.intake.samples import TokenisedSample

ALL_LAYERS = 32
ALPHA, DROPOUT = 32.0, 0.1
SAMPLE_TOKENS = 512
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}


_PAGE = """\
# Gain map: adapters together against one after another ({date})

**Setup.** {device}, Python {python}, torch {torch}, transformers {transformers}, {dtype}. {layers} of {all_layers}
layers of Llama-3.1-8B's shape with the same share of its vocabulary, random weights; rank {rank}, dropout {dropout},
all linear layers, samples of at most {sample_tokens} tokens, microbatches of {capacity:,} tokens. A cell is one
optimizer step of every adapter.

**Command.** `{command}`; {seconds} s. Medians of {samples} steps; the JSON has all of them.

## How many times faster together than one after another
{gains}

Sharing loses (bold; beyond p20 to p80) at: {losing}.

## Tokens per second together
{speeds}

## Milliseconds of a step together
{times}
"""


@dataclass(frozen=True)
class Cell:
    """One optimizer step of every adapter, in milliseconds."""

    num_adapters: int
    tokens: int  # of each adapter
    together_ms: tuple[float, ...]
    alone_ms: tuple[float, ...]  # of one adapter
    num_microbatches: int  # together

    @property
    def gain(self) -> float:
        """Give how many times faster together is than one after another; below 1 sharing loses."""
        return self.num_adapters * statistics.median(self.alone_ms) / statistics.median(self.together_ms)

    @property
    def low_gain(self) -> float:
        """Give the gain with the slower fifth of together and the faster fifth of alone."""
        return float(self.num_adapters * np.percentile(self.alone_ms, 20) / np.percentile(self.together_ms, 80))

    @property
    def high_gain(self) -> float:
        """Give the gain with the faster fifth of together and the slower fifth of alone."""
        return float(self.num_adapters * np.percentile(self.alone_ms, 80) / np.percentile(self.together_ms, 20))

    def to_json(self) -> dict[str, Any]:
        """Give the cell as JSON data."""
        return {
            "adapters": self.num_adapters,
            "tokensPerAdapter": self.tokens,
            "gain": round(self.gain, 3),
            "gainP20P80": [round(self.low_gain, 3), round(self.high_gain, 3)],
            "microbatches": self.num_microbatches,
            "togetherMs": [round(value, 3) for value in self.together_ms],
            "aloneMs": [round(value, 3) for value in self.alone_ms],
            "tokensPerSecondTogether": round(
                1e3 * self.num_adapters * self.tokens / statistics.median(self.together_ms)
            ),
        }


class StepRun:
    """One optimizer step of some adapters on a backend, again and again."""

    def __init__(
        self, backend: TransformersBackend, *, num_adapters: int, tokens: int, rank: int, capacity: int
    ) -> None:
        self._backend = backend
        self._pool = SlotPool(
            backend.linears,
            max_slots=num_adapters,
            max_rank=rank,
            device=backend.device,
            compute_dtype=backend.dtype,
        )
        backend.attach(self._pool)
        names = backend.resolve_targets(["all-linear"]).names
        self._optimizers = []
        for seed in range(num_adapters):
            slot = self._pool.acquire(AdapterOptions(rank, ALPHA, False, DROPOUT, seed, names))
            options = OptimizerOptions(learning_rate=1e-4, total_steps=10**6)
            self._optimizers.append(AdapterOptimizer(self._pool.adapter(slot), options))
        lengths = [SAMPLE_TOKENS] * (tokens // SAMPLE_TOKENS) + [tokens % SAMPLE_TOKENS] * bool(tokens % SAMPLE_TOKENS)
        self._num_supervised = sum(length - 1 for length in lengths)
        batch = GlobalBatch(0, tuple(SampleRef(draw, length) for draw, length in enumerate(lengths)))
        work = [JobWork(str(adapter), (batch,)) for adapter in range(num_adapters)]
        self._plan = plan_horizon(work, PlanLimits(token_capacity=capacity), solver_timeout_seconds=0)
        self._samples = [_make_sample(row, length, backend.vocab_size) for row, length in enumerate(lengths)]
        self._packed = [self._pack(microbatch) for microbatch in self._plan.microbatches]

    @property
    def num_microbatches(self) -> int:
        """Count the microbatches of a step."""
        return self._plan.num_microbatches

    def step(self) -> float:
        """Take a step of every adapter; gives the milliseconds."""
        _synchronise(self._backend)
        started = time.perf_counter()
        losses, left = [0.0] * len(self._optimizers), [len(self._samples)] * len(self._optimizers)
        for microbatch, packed in zip(self._plan.microbatches, self._packed, strict=True):
            values = self._backend.forward_backward(packed)
            for segment, loss in zip(microbatch.segments, values, strict=True):
                adapter = int(segment.job)
                losses[adapter] += loss
                left[adapter] -= len(segment.samples)
                if not left[adapter]:
                    self._optimizers[adapter].step(losses[adapter], self._num_supervised)
        _synchronise(self._backend)
        return 1e3 * (time.perf_counter() - started)

    def close(self) -> None:
        """Free the slots."""
        for slot in self._pool.occupied:
            self._pool.release(slot)

    def _pack(self, microbatch: Microbatch) -> PackedMicrobatch:
        return pack_microbatch(
            [
                SegmentSource(
                    slot=int(segment.job),
                    samples=tuple(self._samples[ref.draw] for ref in segment.samples),
                    draws=tuple(ref.draw for ref in segment.samples),
                    step=0,
                    loss_weight=1 / self._num_supervised,
                )
                for segment in microbatch.segments
            ]
        )


def _make_sample(row: int, num_tokens: int, vocab_size: int) -> TokenisedSample:
    ids = np.random.default_rng(row).integers(0, vocab_size, num_tokens, dtype=np.int32)
    return TokenisedSample(row + 1, ids, np.arange(num_tokens) > 0)


def _synchronise(backend: TransformersBackend) -> None:
    if backend.device.type == "cuda":
        torch.cuda.synchronize()


def measure_map(backend: TransformersBackend, arguments: argparse.Namespace) -> list[Cell]:
    """Measure every cell; together and alone take turns, so that clocks that rise favour neither."""
    cells = []
    for tokens in arguments.tokens:
        for num_adapters in arguments.adapters:
            cell = measure_cell(backend, num_adapters, tokens, arguments)
            cells.append(cell)
            print(json.dumps(cell.to_json()), flush=True)
    return cells


def measure_cell(backend: TransformersBackend, num_adapters: int, tokens: int, arguments: argparse.Namespace) -> Cell:
    """Measure one cell; a pool is attached to the backend while its run steps."""
    times: dict[int, list[float]] = {1: [], num_adapters: []}
    together: list[float] = []
    num_microbatches = 0
    for _ in range(arguments.rounds):
        for count, kept in ((num_adapters, together), (1, times[1])):
            run = StepRun(backend, num_adapters=count, tokens=tokens, rank=arguments.rank, capacity=arguments.capacity)
            run.step()
            run.step()  # the first compiles and fills the allocator, the second settles
            kept += [run.step() for _ in range(arguments.repeats)]
            num_microbatches = run.num_microbatches if count == num_adapters else num_microbatches
            run.close()
    return Cell(num_adapters, tokens, tuple(together), tuple(times[1]), num_microbatches)


def build_base(arguments: argparse.Namespace) -> TransformersBackend:
    """Build the cut base with random weights."""
    layers = arguments.layers
    changes: dict[str, Any] = {
        "num_hidden_layers": layers,
        "vocab_size": llama_8b.CONFIG["vocab_size"] * layers // ALL_LAYERS,  # type: ignore[operator]
        "bos_token_id": 0,
        "eos_token_id": 1,
        **(TINY if arguments.tiny else {}),
    }
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(**{**llama_8b.CONFIG, **changes}),
            dtype=torch.bfloat16 if arguments.device == "cuda" else torch.float32,
            attn_implementation=ATTENTION_NAME,
        )
    return TransformersBackend(model.eval().requires_grad_(False))


def write_markdown(path: Path, cells: list[Cell], facts: dict[str, Any]) -> None:
    """Write the map as two tables."""
    adapters = sorted({cell.num_adapters for cell in cells})
    by_place = {(cell.tokens, cell.num_adapters): cell for cell in cells}
    rows = sorted({cell.tokens for cell in cells})
    head = f"| tokens per adapter and step | {' | '.join(f'{count} adapters' for count in adapters)} |"
    rule = "| --- " * (len(adapters) + 1) + "|"

    def table(show: Callable[[Cell], str]) -> str:
        lines = [f"| {t:,} | {' | '.join(show(by_place[t, n]) for n in adapters)} |" for t in rows]
        return "\n".join([head, rule, *lines])

    losing = [cell for cell in cells if cell.high_gain < 1]
    names = ", ".join(f"{cell.num_adapters} x {cell.tokens:,} tokens ({cell.gain:.2f})" for cell in losing)
    path.write_text(
        _PAGE.format(
            date=time.strftime("%Y-%m-%d"),
            all_layers=ALL_LAYERS,
            dropout=DROPOUT,
            sample_tokens=SAMPLE_TOKENS,
            gains=table(lambda cell: f"**{cell.gain:.2f}**" if cell.high_gain < 1 else f"{cell.gain:.2f}"),
            losing=names or "no cell",
            speeds=table(lambda cell: f"{cell.to_json()['tokensPerSecondTogether']:,}"),
            times=table(lambda cell: f"{statistics.median(cell.together_ms):.1f}"),
            **facts,
        ),
        encoding="utf-8",
    )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--adapters", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--layers", type=int, default=4, help=f"of {ALL_LAYERS}")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--capacity", type=int, default=8192, help="tokens of a microbatch")
    parser.add_argument("--repeats", type=int, default=4, help="timed steps of each side in a round")
    parser.add_argument("--rounds", type=int, default=2, help="together and alone take turns this often")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a tiny width, to try the script without a GPU")
    parser.add_argument("--out", type=Path, default=Path("runs/gain_map"), help="without suffix")
    arguments = parser.parse_args()
    if min(arguments.tokens) < 2 or min(arguments.adapters) < 1:
        parser.error("--tokens: at least 2, since the first of a sample is no target; --adapters: at least 1")
    if arguments.device == "cpu" and not arguments.tiny:
        parser.error("needs a CUDA device, or --tiny")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    cells = measure_map(build_base(arguments), arguments)
    facts = {
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "dtype": "bf16" if arguments.device == "cuda" else "fp32",
        "layers": arguments.layers,
        "rank": arguments.rank,
        "capacity": arguments.capacity,
        "samples": arguments.rounds * arguments.repeats,
        "command": f"python tests/benchmark/gpu/bench_gain_map.py{' --tiny' if arguments.tiny else ''}",
        "seconds": round(time.perf_counter() - started),
    }
    arguments.out.with_suffix(".json").write_text(
        json.dumps({"facts": facts, "cells": [cell.to_json() for cell in cells]}, indent=1), encoding="utf-8"
    )
    write_markdown(arguments.out.with_suffix(".md"), cells, facts)
    print(arguments.out.with_suffix(".md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
