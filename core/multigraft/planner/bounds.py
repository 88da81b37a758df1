"""Lower bounds on the number of microbatches that any plan of some work needs.

area        the whole tiles of every (job, step) over the tiles of one microbatch; a step's own tokens may share
            tiles, another step's never do
big items   L2 of Martello and Toth 1990 ("Knapsack Problems", 8.3): for every threshold t, samples longer than
            capacity - t sit alone with respect to those of at least t, those over half the capacity sit apart
steps       two steps of one job never share a microbatch, so its steps' bounds add up
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multigraft.planner.plan import JobWork, PlanLimits

MAX_THRESHOLDS = 64  # of L2; more gain nothing on real length lists and cost time


def bound_microbatches(work: Sequence[JobWork], limits: PlanLimits) -> int:
    """Give the best of the bounds: no plan of this work has fewer microbatches that are not no-ops."""
    steps = [[np.array([s.num_tokens for s in batch.samples]) for batch in job.global_batches] for job in work]
    lengths = [batch for job in steps for batch in job]
    if not lengths:
        return 0
    return max(
        _bound_area(lengths, limits),
        bound_big_items(np.concatenate(lengths), _usable(limits)),
        max(sum(bound_one_batch([batch], limits) for batch in job) for job in steps),
    )


def bound_one_batch(lengths: Sequence[NDArray[np.int64]], limits: PlanLimits) -> int:
    """Bound the microbatches of one global batch of each of several adapters.

    Args:
        lengths: Tokens of the samples of each adapter, one array per adapter.
        limits: What one microbatch takes.
    """
    present = [batch for batch in lengths if len(batch)]
    if not present:
        return 0
    return max(_bound_area(present, limits), bound_big_items(np.concatenate(present), _usable(limits)))


def bound_big_items(lengths: NDArray[np.int64], capacity: int) -> int:
    """Give L2 for one-dimensional bin packing of `lengths` [n], each at most `capacity`."""
    ordered = np.sort(lengths)
    small = np.unique(ordered[ordered <= capacity // 2])
    thresholds = np.unique(np.concatenate([[0], small[:: max(1, len(small) // MAX_THRESHOLDS)]]))
    return max(_bound_threshold(ordered, int(t), capacity) for t in thresholds)


def _bound_threshold(ordered: NDArray[np.int64], threshold: int, capacity: int) -> int:
    alone = ordered > capacity - threshold
    big = (ordered > capacity // 2) & ~alone
    medium = (ordered >= threshold) & ~alone & ~big
    room = int(big.sum()) * capacity - int(ordered[big].sum())
    overflow = max(0, int(ordered[medium].sum()) - room)
    return int(alone.sum()) + int(big.sum()) + -(-overflow // capacity)


def _bound_area(lengths: Sequence[NDArray[np.int64]], limits: PlanLimits) -> int:
    tiles = sum(-(-int(batch.sum()) // limits.tile_tokens) for batch in lengths)
    return -(-tiles // (limits.token_capacity // limits.tile_tokens))


def _usable(limits: PlanLimits) -> int:
    return limits.token_capacity // limits.tile_tokens * limits.tile_tokens
