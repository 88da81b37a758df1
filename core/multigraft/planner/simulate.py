"""Run a plan through a pipeline in simulated time.

Every stage of every data-parallel replica runs its operations (forward F or backward B of a slot's microbatch) one by
one in an order that the schedule fixes. An operation starts when the one before it on its stage is done and

    F(s, j)   F(s-1, j) is done, and the optimizer steps that its jobs' weights come from: on stage s, after the last
              backward of the job's step before, on all replicas
    B(s, j)   B(s+1, j) is done (on the last stage: F(s, j))

A forward whose stage runs it *before* the last backward of its job's step before, in its own order, cannot wait for it:
it uses stale weights. That is the fault that the verifier's distance rule has to exclude.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from multigraft.planner.cost import CostModel
from multigraft.planner.plan import Plan


class Pass(StrEnum):
    """Direction of an operation."""

    FORWARD = "F"
    BACKWARD = "B"


@dataclass(frozen=True)
class Operation:
    """One pass of one slot's microbatch on one stage."""

    kind: Pass
    slot: int


@dataclass(frozen=True)
class StaleUse:
    """A forward that cannot see its job's last optimizer step."""

    position: int  # of the microbatch in the plan
    stage: int
    job: str
    step: int


@dataclass(frozen=True)
class Timeline:
    """When everything ran, in milliseconds; P positions of the plan, S stages, D replicas."""

    start_ms: NDArray[np.float64]  # [2, S, P]; forward, backward
    end_ms: NDArray[np.float64]  # [2, S, P]
    busy_ms: NDArray[np.float64]  # [S, D], no-ops not counted
    stale: tuple[StaleUse, ...]

    @property
    def makespan_ms(self) -> float:
        return float(self.end_ms.max(initial=0.0))

    @property
    def bubble_ratios(self) -> NDArray[np.float64]:
        """Give the idle share of each stage, mean over replicas, [S]."""
        span = self.makespan_ms
        return np.zeros(len(self.busy_ms)) if span == 0 else 1 - self.busy_ms.mean(axis=1) / span

    @property
    def bubble_ratio(self) -> float:
        """Give the idle share of all stages and replicas."""
        return float(self.bubble_ratios.mean()) if self.bubble_ratios.size else 0.0


def build_1f1b_order(num_stages: int, num_slots: int) -> list[list[Operation]]:
    """Build each stage's order under 1F1B: S-1-s forwards ahead, then forward and backward by turns, then the rest.

    Source: PipeDream-Flush (Narayanan et al. 2021, arXiv:2006.09503), without the flush.
    """
    orders = []
    for stage in range(num_stages):
        ahead = min(num_stages - 1 - stage, num_slots)
        order = [Operation(Pass.FORWARD, slot) for slot in range(ahead)]
        for slot in range(num_slots):
            if slot + ahead < num_slots:
                order.append(Operation(Pass.FORWARD, slot + ahead))
            order.append(Operation(Pass.BACKWARD, slot))
        orders.append(order)
    return orders


def build_gpipe_order(num_stages: int, flush_sizes: Sequence[int]) -> list[list[Operation]]:
    """Build each stage's order under GPipe: all forwards of a flush, then all its backwards in reverse.

    Args:
        num_stages: Stages of the pipeline.
        flush_sizes: Slots between one flush and the next.

    Source: Huang et al. 2019, arXiv:1811.06965.
    """
    order: list[Operation] = []
    first = 0
    for size in flush_sizes:
        order += [Operation(Pass.FORWARD, slot) for slot in range(first, first + size)]
        order += [Operation(Pass.BACKWARD, slot) for slot in reversed(range(first, first + size))]
        first += size
    return [list(order) for _ in range(num_stages)]


def simulate(plan: Plan, cost: CostModel, orders: Sequence[Sequence[Operation]] | None = None) -> Timeline:
    """Run the plan; `orders` gives each stage's operations (default: 1F1B).

    Raises:
        ValueError: If the orders cannot run to their end, or the cost model has shares for another number of stages.
    """
    num_slots = -(-len(plan.microbatches) // plan.limits.num_replicas)
    return _Simulator(plan, cost, orders or build_1f1b_order(plan.limits.num_stages, num_slots)).run()


class _Simulator:
    def __init__(self, plan: Plan, cost: CostModel, orders: Sequence[Sequence[Operation]]) -> None:
        self.plan = plan
        self.orders = orders
        self.num_replicas = plan.limits.num_replicas
        self.durations = _estimate_durations(plan, cost)  # [2][S][P]
        self.end_ms: dict[tuple[Pass, int, int], float] = {}  # pass, stage, position
        self.sources = _find_weight_sources(plan)
        self.stale = _find_stale(plan, orders, self.sources)
        self.excused = {(use.stage, use.position, use.job) for use in self.stale}
        self.cursors = {(stage, replica): 0 for stage in range(len(orders)) for replica in range(self.num_replicas)}
        self.clocks = dict.fromkeys(self.cursors, 0.0)

    def run(self) -> Timeline:
        while sum(self._advance(stage, replica) for stage, replica in self.cursors):
            pass
        if any(cursor < len(self.orders[stage]) for (stage, _), cursor in self.cursors.items()):
            raise ValueError("the stages' orders wait for each other and cannot run to their end")
        return self._build_timeline()

    def _advance(self, stage: int, replica: int) -> bool:
        """Run operations of one stage of one replica until one has to wait; say whether any ran."""
        order = self.orders[stage]
        first = self.cursors[stage, replica]
        for cursor in range(first, len(order)):
            position = order[cursor].slot * self.num_replicas + replica
            if position < len(self.plan.microbatches):
                kind = order[cursor].kind
                ready = self._find_ready_ms(kind, stage, position)
                if ready is None:
                    return cursor > first
                end = max(ready, self.clocks[stage, replica]) + self.durations[kind][stage][position]
                self.end_ms[kind, stage, position] = self.clocks[stage, replica] = end
            self.cursors[stage, replica] = cursor + 1
        return len(order) > first

    def _find_ready_ms(self, kind: Pass, stage: int, position: int) -> float | None:
        """Give the time from which the operation may start, None as long as that is not known."""
        if kind is Pass.BACKWARD:
            last = stage == len(self.orders) - 1
            return self.end_ms.get((Pass.FORWARD, stage, position) if last else (kind, stage + 1, position))
        needs: list[tuple[Pass, int, int]] = [(kind, stage - 1, position)] if stage else []
        for job, source_positions in self.sources[position]:
            if (stage, position, job) not in self.excused:
                needs += [(Pass.BACKWARD, stage, source) for source in source_positions]
        if any(need not in self.end_ms for need in needs):
            return None
        return max((self.end_ms[need] for need in needs), default=0.0)

    def _build_timeline(self) -> Timeline:
        num_stages, num_positions = len(self.orders), len(self.plan.microbatches)
        end = np.array(
            [
                [
                    [self.end_ms[kind, stage, position] for position in range(num_positions)]
                    for stage in range(num_stages)
                ]
                for kind in Pass
            ]
        ).reshape(2, num_stages, num_positions)
        durations = np.array([self.durations[kind] for kind in Pass]).reshape(end.shape)
        works = np.array([bool(m.segments) for m in self.plan.microbatches], dtype=bool)
        busy = (durations * works).sum(axis=0).reshape(num_stages, -1, self.num_replicas).sum(axis=1)
        return Timeline(end - durations, end, busy, tuple(self.stale))


def _estimate_durations(plan: Plan, cost: CostModel) -> dict[Pass, list[list[float]]]:
    shares = np.array(cost.shares(plan.limits.num_stages))[:, None]
    works = np.array([bool(m.segments) for m in plan.microbatches], dtype=bool)
    whole = cost.estimate_ms(plan.microbatches, plan.limits.tile_tokens)
    return {kind: np.where(works, shares * whole[row], whole[row]).tolist() for row, kind in enumerate(Pass)}


def _find_weight_sources(plan: Plan) -> list[list[tuple[str, list[int]]]]:
    """Give, per position, each job in it with the positions of its step before, where the plan has one."""
    positions: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for position, microbatch in enumerate(plan.microbatches):
        for segment in microbatch.segments:
            positions[segment.job][segment.step].append(position)
    before: dict[tuple[str, int], list[int]] = {}
    for job, steps in positions.items():
        ordered = sorted(steps)
        before.update({(job, step): steps[previous] for previous, step in pairwise(ordered)})
    return [
        [
            (segment.job, before[segment.job, segment.step])
            for segment in m.segments
            if (segment.job, segment.step) in before
        ]
        for m in plan.microbatches
    ]


def _find_stale(
    plan: Plan, orders: Sequence[Sequence[Operation]], sources: Sequence[Sequence[tuple[str, list[int]]]]
) -> list[StaleUse]:
    stale = []
    for stage, order in enumerate(orders):
        place = {operation: index for index, operation in enumerate(order)}
        for position, jobs in enumerate(sources):
            forward = place[Operation(Pass.FORWARD, position // plan.limits.num_replicas)]
            for job, source_positions in jobs:
                slots = {source // plan.limits.num_replicas for source in source_positions}
                if any(place[Operation(Pass.BACKWARD, slot)] > forward for slot in slots):
                    step = next(s.step for s in plan.microbatches[position].segments if s.job == job)
                    stale.append(StaleUse(position, stage, job, step))
    return stale
