"""The fused multi-adapter linear beside its peers: times over the frozen linear, by shape.

    python tests/benchmark/kernels/bench_fused_lora.py --json out.json [--peers]

Limits (one H200, 4 adapters of ranks 8, 16, 16, 64 with 10/20/30/40 % of the tokens, dropout 0.1): geometric mean of
forward + backward over the frozen linear at most 1.08, no shape above 1.15; forward alone at most 1.10.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent))

from lora_layer import SHAPES, LoraLayer, make_layer
from timing import measure

from multigraft_kernels.multi_lora.fused_linear import fused_multi_lora_linear
from multigraft_kernels.multi_lora.segmented import multi_lora_linear

Forward = Callable[[], torch.Tensor]


def build_forwards(layer: LoraLayer, *, peers: bool) -> dict[str, Forward]:
    """Give what is compared; each takes the layer's x, which wants a gradient."""

    def run(linear: Callable[..., torch.Tensor]) -> Forward:
        return lambda: linear(
            layer.x, layer.weight, None, layer.a, layer.b, layer.segments, dropout=layer.dropout, grads=layer.grads
        )

    forwards: dict[str, Forward] = {
        "frozen": lambda: F.linear(layer.x, layer.weight),
        "fused": run(fused_multi_lora_linear),
    }
    if peers:
        forwards["segmented"] = run(multi_lora_linear)
        forwards["pytorch"] = _build_plain(layer)
    return forwards


def _build_plain(layer: LoraLayer) -> Forward:
    """LoRA as PEFT writes it, one adapter of the largest rank with torch's dropout."""
    a = layer.a[-1].detach().clone().requires_grad_(True)
    b = layer.b[-1].detach().clone().requires_grad_(True)
    p = 0.1 if layer.dropout is not None else 0.0
    return lambda: F.linear(layer.x, layer.weight) + 0.5 * F.linear(F.linear(F.dropout(layer.x, p), a), b)


def bench(layer: LoraLayer, *, peers: bool, rounds: int) -> dict[str, dict[str, float]]:
    """Measure forward alone and forward + backward of every candidate."""
    works: dict[str, Callable[[], object]] = {}
    for name, forward in build_forwards(layer, peers=peers).items():
        works[f"{name} forward"] = forward
        works[f"{name} both"] = lambda forward=forward: torch.autograd.grad(forward(), [layer.x], layer.dy)
    return {name: asdict(timing) for name, timing in measure(works, rounds=rounds, batch_us=6000).items()}


def report(title: str, rows: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """Print a table of microseconds and ratios; give the geometric means."""
    print(f"--- {title}")
    ratios: dict[str, list[float]] = {}
    for shape, row in rows.items():
        line = f"{shape:18s}"
        for name, timing in row.items():
            kind = name.split()[1]
            ratio = timing["median_us"] / row[f"frozen {kind}"]["median_us"]
            ratios.setdefault(name, []).append(ratio)
            line += f" | {name} {timing['median_us']:.0f} ({ratio:.3f})"
        print(line)
    means = {name: math.exp(sum(map(math.log, values)) / len(values)) for name, values in ratios.items()}
    print(
        "geometric mean    ",
        *(f"{name} {mean:.3f} max {max(ratios[name]):.3f}" for name, mean in means.items()),
        sep=" | ",
    )
    return means


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", type=int, default=len(SHAPES))
    parser.add_argument("--adapters", type=int, nargs="*", default=[4])
    options = parser.parse_args()
    results = {}
    for count in options.adapters:
        rows = {}
        for shape in SHAPES[: options.shapes]:
            mix = {} if count == 4 else {"ranks": (16,) * count, "shares": (1.0,) * count}
            rows["x".join(map(str, shape))] = bench(
                make_layer(*shape, **mix), peers=options.peers, rounds=options.rounds
            )
            gc.collect()
            torch.cuda.empty_cache()
        results[str(count)] = {"us": rows, "geometric_mean": report(f"{count} adapters", rows)}
    results["device"] = torch.cuda.get_device_name()
    options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
