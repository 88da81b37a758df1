"""Pack samples into microbatches by first-fit decreasing, an adapter's tokens counted in whole tiles.

The greedy packing is always at hand: it needs no solver, bounds the number of microbatches that the solver may use, and
is what runs when the solver has nothing better or no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multigraft.planner.plan import GlobalBatch, Microbatch, SampleRef, Segment


@dataclass(frozen=True)
class Item:
    """One sample to place, with the adapter (an index) and the step that it belongs to."""

    adapter: int
    step: int
    sample: SampleRef


def build_items(batches: Sequence[GlobalBatch | None]) -> list[Item]:
    """List the samples of at most one global batch per adapter; None where an adapter has none."""
    return [
        Item(adapter, batch.step, sample)
        for adapter, batch in enumerate(batches)
        if batch is not None
        for sample in batch.samples
    ]


def pack_first_fit_decreasing(items: Sequence[Item], *, token_capacity: int, tile_tokens: int) -> NDArray[np.int64]:
    """Give the bin of each item, [len(items)]: longest first, each into the first bin where its adapter's tiles fit.

    Bins are numbered from 0 without gaps. Every item must fit an empty bin (`check_work`). Ties go by adapter, draw.
    """
    bin_of = np.zeros(len(items), dtype=np.int64)
    num_adapters = 1 + max((item.adapter for item in items), default=0)
    tokens = np.zeros((len(items), num_adapters), dtype=np.int64)  # [bin, adapter]
    loads = np.zeros(len(items), dtype=np.int64)  # [bin], in tokens of whole tiles
    num_bins = 0
    order = sorted(
        range(len(items)), key=lambda i: (-items[i].sample.num_tokens, items[i].adapter, items[i].sample.draw)
    )
    for i in order:
        adapter, num_tokens = items[i].adapter, items[i].sample.num_tokens
        own = tokens[: num_bins + 1, adapter]  # the last one is a new bin
        added = _in_tiles(own + num_tokens, tile_tokens) - _in_tiles(own, tile_tokens)
        chosen = int(np.argmax(loads[: num_bins + 1] + added <= token_capacity))
        loads[chosen] += added[chosen]
        tokens[chosen, adapter] += num_tokens
        bin_of[i] = chosen
        num_bins = max(num_bins, chosen + 1)
    return bin_of


def _in_tiles(tokens: NDArray[np.int64], tile_tokens: int) -> NDArray[np.int64]:
    return -(-tokens // tile_tokens) * tile_tokens


def build_microbatches(items: Sequence[Item], bin_of: Iterable[int], jobs: Sequence[str]) -> list[Microbatch]:
    """Build one microbatch per bin; segments in the order of `jobs`, samples in the order of their draws.

    Args:
        items: Samples of at most one step per adapter.
        bin_of: Bin of each item; bins without items are left out.
        jobs: Job of each adapter index.
    """
    contents: dict[int, dict[tuple[int, int], list[SampleRef]]] = defaultdict(lambda: defaultdict(list))
    for item, chosen in zip(items, bin_of, strict=True):
        contents[int(chosen)][item.adapter, item.step].append(item.sample)
    return [
        Microbatch(
            tuple(
                Segment(jobs[adapter], step, tuple(sorted(samples)))
                for (adapter, step), samples in sorted(segments.items())
            )
        )
        for _, segments in sorted(contents.items())
    ]
