"""Find the launch choices of the fused LoRA linear on this device and write them as a table.

    python tests/benchmark/kernels/tune_fused_lora.py --out kernels/multigraft_kernels/launch/tables

Each reading pass and each GEMM of the all-Gluon path is measured by itself for every candidate and shape; then the
layer as a whole on that path and on the mixed one, whose launches are the present table's. Run tests/gpu first: nothing
is checked here.
Candidates are compiled first, by several processes at once, since compiling takes far longer than measuring.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from lora_layer import SHAPES, LoraLayer, make_layer
from timing import measure

from multigraft_kernels.fused_lora.hopper_gemm import run_base_gemm
from multigraft_kernels.fused_lora.hopper_grad_output import read_grad_output_parts
from multigraft_kernels.fused_lora.hopper_input import read_input_parts
from multigraft_kernels.fused_lora.hopper_shrink import read_shrink_parts
from multigraft_kernels.fused_lora.operands import rank_columns
from multigraft_kernels.fused_lora.ready_factor import make_ready_a, make_ready_b
from multigraft_kernels.fused_lora.reduce_parts import add_to_sinks, reduce_rows
from multigraft_kernels.launch.choices import (
    HopperGemmLaunch,
    HopperGradOutputLaunch,
    HopperInputLaunch,
    HopperLaunch,
    HopperShrinkLaunch,
    LaunchChoice,
)
from multigraft_kernels.launch.device_class import find_device_class
from multigraft_kernels.launch.table import TABLE_VERSION, choose_launch, dump_choice
from multigraft_kernels.multi_lora.fused.routes import build_chunks, build_routes
from multigraft_kernels.multi_lora.fused.sinks import build_sinks
from multigraft_kernels.multi_lora.fused_linear import fused_multi_lora_linear

SHRINK = [HopperShrinkLaunch(split, stages) for split in (512, 1024, 2048) for stages in (3, 4)]
GRAD_OUTPUT = [
    HopperGradOutputLaunch(n, chunk, stages) for n, stages in ((128, 3), (256, 2)) for chunk in (512, 1024, 2048)
]
INPUT = [HopperInputLaunch(k, chunk, stages) for k, stages in ((128, 3), (64, 4)) for chunk in (512, 1024, 2048)]
GEMM = [HopperGemmLaunch(256, 3, group, buffers) for group in (4, 8, 16) for buffers in (1, 2)]

Job = tuple[str, object, Callable[[], object]]


def build_jobs(layer: LoraLayer) -> Iterator[Job]:
    """Yield (kernel, launch, work) for every candidate."""
    x, weight, a, b, dy = layer.x.detach(), layer.weight, layer.a, layer.b, layer.dy
    routes = build_routes(layer.segments, len(x), x.device)
    ready_a = make_ready_a(len(routes.factors), rank_columns(routes.max_rank), x.shape[1], x)
    ready_b = make_ready_b(len(routes.factors), rank_columns(routes.max_rank), b.shape[1], x)

    def reduce_s(parts: torch.Tensor) -> torch.Tensor:
        return reduce_rows(parts, b, routes, layer.dropout, outputs_last=False, ready=ready_b)

    def reduce_ds(parts: torch.Tensor) -> torch.Tensor:
        return reduce_rows(parts, a, routes, layer.dropout, outputs_last=True, ready=ready_a)

    for launch in SHRINK:
        yield "shrink", launch, lambda launch=launch: reduce_s(read_shrink_parts(x, a, routes, layer.dropout, launch))
    s_parts = read_shrink_parts(x, a, routes, layer.dropout, HopperShrinkLaunch())
    yield "of it, reducing", "", lambda: reduce_s(s_parts)
    s = reduce_s(s_parts)
    for launch in GRAD_OUTPUT:
        chunks = build_chunks(layer.segments, launch.chunk_rows, x.device)

        def read_dy(launch: HopperGradOutputLaunch = launch, chunks: object = chunks) -> object:
            return reduce_ds(read_grad_output_parts(dy, b, s, routes, chunks, launch, need_db=True)[0])

        yield "grad_output", launch, read_dy
    chunks = build_chunks(layer.segments, 1024, x.device)
    ds_parts, db_parts = read_grad_output_parts(dy, b, s, routes, chunks, HopperGradOutputLaunch(), need_db=True)
    yield "of it, reducing ds", "", lambda: reduce_ds(ds_parts)
    ds = reduce_ds(ds_parts)
    for launch in INPUT:
        chunks_a = build_chunks(layer.segments, launch.chunk_rows, x.device)

        def read_x(launch: HopperInputLaunch = launch, chunks: object = chunks_a) -> object:
            return read_input_parts(x, ds, routes, chunks, layer.dropout, launch)

        yield "input", launch, read_x
    da_parts = read_input_parts(x, ds, routes, chunks, layer.dropout, HopperInputLaunch())
    sinks = build_sinks(layer.segments, layer.grads, chunks, chunks)
    yield "sinks", "", lambda: add_to_sinks(da_parts, db_parts, routes, chunks, chunks, sinks)
    y, dx = torch.empty_like(dy), torch.empty_like(x)
    for launch in GEMM:
        yield (
            "gemm_forward",
            launch,
            lambda launch=launch: run_base_gemm(y, x, weight, s, ready_b, routes, launch, outputs_last=False),
        )
        yield (
            "gemm_backward",
            launch,
            lambda launch=launch: run_base_gemm(
                dx, dy, weight, ds, ready_a, routes, launch, outputs_last=True, dropout=layer.dropout
            ),
        )
    yield "frozen_forward", "", lambda: x @ weight.t()
    yield "frozen_backward", "", lambda: dy @ weight


def compile_part(index: int, count: int) -> None:
    """Run every count-th candidate once."""
    for position, (kernel, launch, work) in enumerate(build_jobs(make_layer(512, 512, 512))):
        if position % count == index:
            try:
                work()
                torch.cuda.synchronize()
            except Exception as error:  # noqa: BLE001 (a launch that does not compile or fit is reported and left out)
                print("does not run:", kernel, launch, type(error).__name__, str(error)[:200], flush=True)


def compile_all(count: int) -> None:
    """Fill Triton's cache by `count` processes."""
    command = [sys.executable, __file__, "--compile"]
    workers = [subprocess.Popen([*command, f"{index}/{count}"]) for index in range(count)]
    for worker in workers:
        worker.wait()


def tune_shape(num_tokens: int, K: int, N: int, rounds: int) -> dict[str, object]:
    """Measure all candidates of one shape, those of a kernel in turns; print the best and give the table's entry."""
    works: dict[str, dict[str, Callable[[], object]]] = {}
    launches: dict[str, object] = {}
    for kernel, launch, work in build_jobs(make_layer(num_tokens, K, N)):
        launches[str(launch)] = launch
        group = "gemm" if kernel.startswith(("gemm", "frozen")) else kernel
        works.setdefault(group, {})[f"{kernel}|{launch}"] = work
    report: dict[str, list[tuple[float, str]]] = {}
    for jobs in works.values():
        for name, timing in measure(jobs, rounds=rounds, batch_us=1500).items():
            kernel, launch = name.split("|")
            report.setdefault(kernel, []).append((timing.median_us, launch))
    print(f"--- {num_tokens} x {K} x {N}")
    for kernel, entries in report.items():
        entries.sort()
        print(f"{kernel:18s}", *(f"{time:7.1f} {_short(launch)}" for time, launch in entries[:4]), sep=" | ")
    parts = {kernel: launches[entries[0][1]] for kernel, entries in report.items() if entries[0][1]}
    choice = choose_path(make_layer(num_tokens, K, N), HopperLaunch(**parts), rounds)
    return {"K": K, "N": N, "tokens": num_tokens, "us": report, "launch": dump_choice(choice)}


def choose_path(layer: LoraLayer, hopper: HopperLaunch, rounds: int) -> LaunchChoice:
    """Measure the layer, forward and backward, on both paths that have the Hopper GEMM; give the faster one."""
    present = choose_launch(layer.x, layer.weight, layer.b, 64)
    choices = {
        path: LaunchChoice(path, portable=present.portable, hopper=launches)
        for path, launches in (("mixed", present.hopper), ("hopper", hopper))
    }

    def run(choice: LaunchChoice) -> object:
        y = fused_multi_lora_linear(
            layer.x, layer.weight, None, layer.a, layer.b, layer.segments,
            dropout=layer.dropout, grads=layer.grads, launch=choice,
        )  # fmt: skip
        return torch.autograd.grad(y, [layer.x], layer.dy)

    works = {path: functools.partial(run, choice) for path, choice in choices.items()}
    timings = measure(works, rounds=rounds, batch_us=6000)
    print("both passes       ", *(f"{path} {timing.median_us:.0f}" for path, timing in timings.items()), sep=" | ")
    return choices[min(timings, key=lambda path: timings[path].median_us)]


def _short(launch: str) -> str:
    return " ".join(part.split("=")[1].rstrip(")") for part in launch.split("(")[1].split(", ")) if launch else ""


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
