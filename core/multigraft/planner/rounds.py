"""Pack in rounds, as LoRAFusion does: round k packs the k-th global batch of every job, group by group.

Each (round, group) is one packing problem: greedy first, then, where greedy is not proved best, the solver. Greedy is
first-fit decreasing or best-fill, whichever needs fewer bins, or of equals has the smaller smallest bin. The
microbatches of a problem are listed fullest first, so that the last has the most room for the next group's samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from multigraft.planner.best_fill import FillPolicy, fill_best
from multigraft.planner.bounds import bound_one_batch
from multigraft.planner.grouping import group_jobs
from multigraft.planner.packing import Item, build_items, build_microbatches, pack_first_fit_decreasing
from multigraft.planner.packing_problem import PackingProblem, count_tiles, is_smallest_at_bound
from multigraft.planner.plan import GlobalBatch, JobWork, Microbatch, PlanLimits

MAX_VARIABLES = 20_000  # of a programme; building a larger one takes longer than any budget


@dataclass(frozen=True)
class Unit:
    """One packing problem: a round of one group."""

    items: tuple[Item, ...]
    problem: PackingProblem

    @property
    def is_fewest(self) -> bool:
        """Say whether greedy is known to need the fewest bins."""
        return max(self.problem.greedy) + 1 <= self.problem.min_bins

    @property
    def is_proved(self) -> bool:
        """Say whether greedy is known to be the best packing, smallest bin included."""
        return self.is_fewest and is_smallest_at_bound(self.problem, self.problem.greedy)

    @property
    def is_solvable(self) -> bool:
        """Say whether a solver may be asked: not proved, and not too large."""
        return not self.is_proved and len(self.items) * (max(self.problem.greedy) + 1) <= MAX_VARIABLES


def build_units(work: Sequence[JobWork], limits: PlanLimits) -> list[Unit]:
    """Build the packing problems of all rounds, in the order in which they run, each with its greedy packing."""
    groups = group_jobs(work, limits)
    units = []
    for batches in zip_longest(*(job.global_batches for job in work)):
        for group in groups:
            own = [batch if index in group else None for index, batch in enumerate(batches)]
            if any(own):
                units.append(_build_unit(own, limits))
    return units


def build_rounds(
    units: Sequence[Unit], packings: Sequence[Sequence[int]], work: Sequence[JobWork], limits: PlanLimits
) -> list[Microbatch]:
    """Build the microbatches of all units, each unit's fullest first, from the bin of each of its items."""
    jobs = [job.job for job in work]
    microbatches = []
    for unit, bin_of in zip(units, packings, strict=True):
        built = build_microbatches(unit.items, bin_of, jobs)
        microbatches += sorted(built, key=lambda microbatch: -microbatch.padded_tokens(limits.tile_tokens))
    return microbatches


def _build_unit(batches: Sequence[GlobalBatch | None], limits: PlanLimits) -> Unit:
    items = build_items(batches)
    first_fit = pack_first_fit_decreasing(items, token_capacity=limits.token_capacity, tile_tokens=limits.tile_tokens)
    lengths = [np.array([sample.num_tokens for sample in batch.samples]) for batch in batches if batch is not None]
    problem = PackingProblem(
        tuple(item.sample.num_tokens for item in items),
        tuple(item.adapter for item in items),
        limits.token_capacity,
        limits.tile_tokens,
        bound_one_batch(lengths, limits),
        tuple(first_fit.tolist()),
    )
    filled = replace(problem, greedy=_pack_best_fill(items, batches, limits))
    return Unit(tuple(items), min(problem, filled, key=_rank_greedy))


def _rank_greedy(problem: PackingProblem) -> tuple[int, int]:
    """Order packings by their number of bins, then by the tiles of the smallest."""
    tiles = count_tiles(problem, problem.greedy)
    return len(tiles), min(tiles.values())


def _pack_best_fill(
    items: Sequence[Item], batches: Sequence[GlobalBatch | None], limits: PlanLimits
) -> tuple[int, ...]:
    """Give the bin of each item, as best-fill packs the round by itself."""
    work = [JobWork(str(index), (batch,)) for index, batch in enumerate(batches) if batch is not None]
    alone = PlanLimits(limits.token_capacity, limits.tile_tokens)
    bins = {
        (segment.job, sample.draw): number
        for number, microbatch in enumerate(fill_best(work, alone, FillPolicy(limits.token_capacity)))
        for segment in microbatch.segments
        for sample in segment.samples
    }
    return tuple(bins[str(item.adapter), item.sample.draw] for item in items)
