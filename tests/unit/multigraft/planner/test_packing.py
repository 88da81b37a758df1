from __future__ import annotations

import numpy as np
import pytest

from builders.planning import make_work
from multigraft.planner.packing import build_items, build_microbatches, pack_first_fit_decreasing
from multigraft.planner.plan import GlobalBatch


def first_batches(*lengths: list[int]) -> list[GlobalBatch | None]:
    return [make_work("x", one).global_batches[0] if one else None for one in lengths]


@pytest.mark.parametrize(
    "lengths, capacity, tile, want",
    [
        ([[10]], 4096, 1, [0]),
        ([[60, 1]], 60, 1, [0, 1]),
        ([[50, 30, 20]], 50, 1, [0, 1, 1]),
        ([[33], [33]], 64, 32, [0, 1]),
        ([[33, 31], [1]], 64, 32, [0, 0, 1]),
        ([[], [5, 5]], 10, 1, [0, 0]),
        ([[6, 4], [6, 4]], 10, 1, [0, 0, 1, 1]),
    ],
    ids=[
        "G03 one short sample makes one bin",
        "G02 a sample as long as the capacity fits exactly",
        "later samples fill earlier bins",
        "two adapters pay for their tiles separately",
        "one adapter shares its own tiles",
        "an adapter without samples",
        "ties go by adapter, then draw",
    ],
)
def test_first_fit_decreasing(lengths: list[list[int]], capacity: int, tile: int, want: list[int]) -> None:
    items = build_items(first_batches(*lengths))
    got = pack_first_fit_decreasing(items, token_capacity=capacity, tile_tokens=tile)
    assert got.tolist() == want


def test_C12_an_odd_sample_is_not_dropped() -> None:
    items = build_items(first_batches([10] * 9))
    got = pack_first_fit_decreasing(items, token_capacity=20, tile_tokens=1)
    assert np.bincount(got).tolist() == [2, 2, 2, 2, 1]


def test_microbatches_hold_segments_in_job_order_and_samples_in_draw_order() -> None:
    items = build_items(first_batches([3, 9], [4]))
    (microbatch,) = build_microbatches(items[::-1], [7, 7, 7], ["a", "b"])
    assert [(s.job, [r.draw for r in s.samples]) for s in microbatch.segments] == [("a", [0, 1]), ("b", [0])]


def test_nothing_to_pack_makes_no_microbatch() -> None:
    got = pack_first_fit_decreasing([], token_capacity=10, tile_tokens=1)
    assert build_microbatches([], got.tolist(), []) == []
