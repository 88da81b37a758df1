"""Find the launch choices of the fused LoRA linear on this device and write them as a table.

    python tests/benchmark/kernels/tune_fused_lora.py --out kernels/multigraft_kernels/launch/tables

Each reading pass and each GEMM is measured by itself for every candidate and shape; the fastest make the table.
Candidates are compiled first, by several processes at once, since compiling takes far longer than measuring.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from lora_layer import SHAPES, LoraLayer, make_layer
from timing import measure

from multigraft_kernels.fused_lora.added_part import compute_added_part
from multigraft_kernels.fused_lora.base_gemm_hopper import run_base_gemm
from multigraft_kernels.fused_lora.grad_output_pass import read_grad_output
from multigraft_kernels.fused_lora.input_pass import read_input
from multigraft_kernels.fused_lora.operands import rank_columns
from multigraft_kernels.fused_lora.ready_factor import make_ready_a, make_ready_b
from multigraft_kernels.fused_lora.reduce_parts import add_to_sinks, reduce_ds
from multigraft_kernels.fused_lora.shrink import shrink
from multigraft_kernels.launch.choices import (
    AddedLaunch,
    GradOutputLaunch,
    HopperGemmLaunch,
    InputLaunch,
    ShrinkLaunch,
)
from multigraft_kernels.launch.device_class import find_device_class
from multigraft_kernels.launch.table import TABLE_VERSION
from multigraft_kernels.multi_lora.fused.routes import build_chunks, build_routes
from multigraft_kernels.multi_lora.fused.sinks import build_sinks

SHRINK = [
    ShrinkLaunch(t, k, 64, warps, stages)
    for t, k, warps, stages in [
        (16, 128, 4, 3), (32, 64, 4, 4), (32, 128, 4, 3), (32, 128, 4, 4), (32, 128, 8, 3), (64, 64, 4, 4),
        (64, 64, 8, 4), (64, 128, 4, 3), (64, 128, 8, 3), (64, 128, 8, 4), (64, 256, 8, 2),
    ]
]  # fmt: skip
GRAD_OUTPUT = [
    GradOutputLaunch(t, n, chunk, 64, warps, stages)
    for t, n, warps, stages in [
        (64, 128, 4, 2), (64, 128, 4, 3), (64, 128, 8, 3), (64, 256, 4, 2), (64, 256, 8, 2), (64, 256, 8, 3),
        (64, 256, 8, 4), (128, 128, 8, 2), (128, 128, 8, 3),
    ]
    for chunk in (512, 1024, 2048)
]  # fmt: skip
INPUT = [
    InputLaunch(t, k, chunk, 64, warps, stages)
    for t, k, warps, stages in [
        (16, 512, 8, 4), (32, 128, 4, 3), (32, 128, 4, 4), (32, 256, 4, 3), (32, 256, 8, 3), (32, 512, 8, 3),
        (64, 128, 4, 3), (64, 128, 8, 3), (64, 256, 8, 3),
    ]
    for chunk in (512, 1024, 2048)
]  # fmt: skip
GEMM = [HopperGemmLaunch(256, stages, group) for stages in (3, 4) for group in (4, 8, 16)]

Job = tuple[str, object, Callable[[], object]]


def build_jobs(layer: LoraLayer) -> Iterator[Job]:
    """Yield (kernel, launch, work) for every candidate."""
    x, weight, a, b, dy = layer.x.detach(), layer.weight, layer.a, layer.b, layer.dy
    routes = build_routes(layer.segments, len(x), x.device)
    ready_a = make_ready_a(len(routes.factors), rank_columns(routes.max_rank), x.shape[1], x)
    ready_b = make_ready_b(len(routes.factors), rank_columns(routes.max_rank), b.shape[1], x)
    for launch in SHRINK:
        yield "shrink", launch, lambda launch=launch: shrink(x, a, b, routes, layer.dropout, launch, ready=ready_b)
    s = shrink(x, a, b, routes, layer.dropout, ShrinkLaunch(), ready=ready_b)
    for launch in GRAD_OUTPUT:
        chunks = build_chunks(layer.segments, launch.chunk_rows, x.device)

        def read_dy(launch: GradOutputLaunch = launch, chunks: object = chunks) -> object:
            parts, _ = read_grad_output(dy, b, s, routes, chunks, launch, need_db=True)
            return reduce_ds(parts, a, routes, layer.dropout, ready=ready_a)

        yield "grad_output", launch, read_dy
    chunks_b = build_chunks(layer.segments, 1024, x.device)
    ds_parts, db_parts = read_grad_output(dy, b, s, routes, chunks_b, GradOutputLaunch(), need_db=True)
    yield "reduce_ds", AddedLaunch(), lambda: reduce_ds(ds_parts, a, routes, layer.dropout, ready=ready_a)
    ds = reduce_ds(ds_parts, a, routes, layer.dropout, ready=ready_a)
    for launch in INPUT:
        chunks = build_chunks(layer.segments, launch.chunk_rows, x.device)

        def read_x(launch: InputLaunch = launch, chunks: object = chunks) -> object:
            return read_input(x, ds, routes, chunks, layer.dropout, launch, need_da=True, need_keep=True)

        yield "input", launch, read_x
    da_parts, keep = read_input(x, ds, routes, chunks_b, layer.dropout, InputLaunch(), need_da=True, need_keep=True)
    sinks = build_sinks(layer.segments, layer.grads, chunks_b, chunks_b)
    yield "sinks", AddedLaunch(), lambda: add_to_sinks(da_parts, db_parts, routes, chunks_b, chunks_b, sinks)
    for launch in GEMM:
        yield (
            "gemm_forward",
            launch,
            lambda launch=launch: run_base_gemm(x, weight, s, ready_b, routes, launch, outputs_last=False),
        )
        yield (
            "gemm_backward",
            launch,
            lambda launch=launch: run_base_gemm(dy, weight, ds, ready_a, routes, launch, outputs_last=True, keep=keep),
        )
    yield "frozen_forward", AddedLaunch(), lambda: x @ weight.t()
    yield "frozen_backward", AddedLaunch(), lambda: dy @ weight
    for block_o in (128, 256):
        launch = AddedLaunch(block_o)

        def add_forward(launch: AddedLaunch = launch) -> object:
            part = compute_added_part(s, b, len(x), routes, launch, outputs_last=False)
            return part.addmm_(x, weight.t())

        def add_backward(launch: AddedLaunch = launch) -> object:
            part = compute_added_part(ds, a, len(x), routes, launch, outputs_last=True, keep=keep)
            return part.addmm_(dy, weight)

        yield "added_forward", launch, add_forward
        yield "added_backward", launch, add_backward


def compile_part(index: int, count: int) -> None:
    """Run every count-th candidate once."""
    for position, (kernel, launch, work) in enumerate(build_jobs(make_layer(512, 512, 512))):
        if position % count == index:
            try:
                work()
                torch.cuda.synchronize()
            except Exception as error:
                print("does not run:", kernel, launch, type(error).__name__, str(error)[:200], flush=True)


def compile_all(count: int) -> None:
    """Fill Triton's cache by `count` processes."""
    command = [sys.executable, __file__, "--compile"]
    workers = [subprocess.Popen([*command, f"{index}/{count}"]) for index in range(count)]
    for worker in workers:
        worker.wait()


def tune_shape(num_tokens: int, K: int, N: int, rounds: int) -> dict[str, object]:
    """Measure all candidates of one shape; print the best and give the table's entry."""
    best: dict[str, tuple[float, object]] = {}
    report: dict[str, list[tuple[float, str]]] = {}
    for kernel, jobs in itertools.groupby(build_jobs(make_layer(num_tokens, K, N)), key=lambda job: job[0]):
        for _, launch, work in jobs:
            try:
                timing = measure({"it": work}, rounds=rounds, batch_us=1500)["it"]
            except Exception as error:
                print("does not run:", kernel, launch, type(error).__name__, str(error)[:100])
                continue
            report.setdefault(kernel, []).append((timing.median_us, str(launch)))
            if kernel not in best or timing.median_us < best[kernel][0]:
                best[kernel] = (timing.median_us, launch)
    print(f"--- {num_tokens} x {K} x {N}")
    for kernel, entries in report.items():
        entries.sort()
        print(f"{kernel:16s}", *(f"{time:7.1f} {_short(launch)}" for time, launch in entries[:5]), sep=" | ")
    parts = {
        name: asdict(best[name][1]) for name in ("shrink", "grad_output", "input", "gemm_forward", "gemm_backward")
    }
    choice = {
        "base_forward": "hopper" if best["gemm_forward"][0] <= best["added_forward"][0] else "added",
        "base_backward": "hopper" if best["gemm_backward"][0] <= best["added_backward"][0] else "added",
        "added": asdict(best["added_forward"][1]),
        **parts,
    }
    return {
        "K": K,
        "N": N,
        "tokens": num_tokens,
        "us": {k: v[0] for k, v in best.items()},
        "launch": choice,
        "all": report,
    }


def _short(launch: str) -> str:
    values = [part.split("=")[1].rstrip(")") for part in launch.split("(")[1].split(", ")]
    return " ".join(values)


def main() -> None:
    """Run the tuner."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shapes", type=int, default=len(SHAPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--compile", help="I/N: run every N-th candidate once, from the I-th on")
    parser.add_argument("--compiled", action="store_true", help="the cache is full already")
    options = parser.parse_args()
    if options.compile:
        compile_part(*map(int, options.compile.split("/")))
        return
    if not options.compiled:
        compile_all(options.processes)
    entries = [tune_shape(*shape, options.rounds) for shape in SHAPES[: options.shapes]]
    options.out.mkdir(parents=True, exist_ok=True)
    name, _ = find_device_class(torch.device("cuda"))
    table = {"version": TABLE_VERSION, "device": torch.cuda.get_device_name(), "entries": entries}
    (options.out / f"{name}.json").write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
