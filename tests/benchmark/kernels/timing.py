"""Times of GPU work as CUDA-graph replays, the candidates taking turns so that heat and clocks fall on all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    median_us: float
    p20_us: float
    p80_us: float


def capture(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Run `work` twice on a side stream, then record it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def measure(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 15, batch_us: float = 3000
) -> dict[str, Timing]:
    """Measure each candidate in `rounds` batches of about `batch_us`, in turns."""
    graphs = {name: capture(work) for name, work in candidates.items()}
    replays = {name: max(2, int(batch_us / _time(graph, 3))) for name, graph in graphs.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            times[name].append(_time(graph, replays[name]))
    return {name: _summarise(values) for name, values in times.items()}


def _time(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / replays


def _summarise(values: list[float]) -> Timing:
    tenths = statistics.quantiles(values, n=10)
    return Timing(statistics.median(values), tenths[1], tenths[7])
