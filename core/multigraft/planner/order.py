"""Put microbatches in an order that the pipeline can run without stale weights.

A microbatch at position p runs on data-parallel replica p % num_replicas in slot p // num_replicas. With 1F1B over S
stages the first stage starts forward number j only after backward number j - S, so the optimizer step after the last
backward of a job's global batch is seen by forwards at least S slots later: a job's next step starts S or more slots
after its previous step's last microbatch, on every replica. (LoRAFusion's paper says S - 1; its code says S.)

Among the microbatches that may run now the first in the given order is taken; a no-op fills a
place only where none may.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence

from multigraft.planner.plan import Microbatch, PlanLimits

NO_OP = Microbatch(())


def order_microbatches(
    microbatches: Sequence[Microbatch],
    limits: PlanLimits,
    earliest_slots: Mapping[str, int] | None = None,
) -> list[Microbatch]:
    """Order the microbatches, earlier ones preferred, no-ops where nothing may run; whole slots.

    Args:
        microbatches: None of them empty. Steps of a job count up without gaps.
        limits: Stages and replicas of the machine.
        earliest_slots: Slot before which a job's *first* step here must not start (distance owed to an earlier plan).

    Raises:
        ValueError: If steps wait for each other in a circle.
    """
    return _ListScheduler(microbatches, limits, earliest_slots or {}).run()


class _ListScheduler:
    """A microbatch waits once the steps before its own are complete, and is ready once its slot has come."""

    def __init__(
        self, microbatches: Sequence[Microbatch], limits: PlanLimits, earliest_slots: Mapping[str, int]
    ) -> None:
        self.microbatches = microbatches
        self.limits = limits
        self.members: dict[tuple[str, int], list[int]] = defaultdict(list)
        for index, microbatch in enumerate(microbatches):
            for segment in microbatch.segments:
                self.members[segment.job, segment.step].append(index)
        self.left = {
            key: len(indices) for key, indices in self.members.items()
        }  # microbatches of a step not yet placed
        self.blocked_by = [0] * len(microbatches)  # steps before its own that are not complete
        self.earliest = [0] * len(microbatches)
        self.waiting: list[tuple[int, int]] = []  # (earliest slot, index)
        self.ready: list[int] = []
        for index, microbatch in enumerate(microbatches):
            self._enter(index, microbatch, earliest_slots)

    def run(self) -> list[Microbatch]:
        placed: list[Microbatch] = []
        num_left = len(self.microbatches)
        while num_left or len(placed) % self.limits.num_replicas:
            slot = len(placed) // self.limits.num_replicas
            self._promote(slot)
            if self.ready:
                index = heapq.heappop(self.ready)
                placed.append(self.microbatches[index])
                num_left -= 1
                self._complete(index, slot)
            elif self.waiting or not num_left:
                placed.append(NO_OP)
            else:
                raise ValueError(f"{num_left} microbatches wait for each other: their steps have no order")
        return placed

    def _enter(self, index: int, microbatch: Microbatch, earliest_slots: Mapping[str, int]) -> None:
        for segment in microbatch.segments:
            if (segment.job, segment.step - 1) in self.members:
                self.blocked_by[index] += 1
            else:
                self.earliest[index] = max(self.earliest[index], earliest_slots.get(segment.job, 0))
        if not self.blocked_by[index]:
            heapq.heappush(self.waiting, (self.earliest[index], index))

    def _promote(self, slot: int) -> None:
        while self.waiting and self.waiting[0][0] <= slot:
            heapq.heappush(self.ready, heapq.heappop(self.waiting)[1])

    def _complete(self, index: int, slot: int) -> None:
        for segment in self.microbatches[index].segments:
            self.left[segment.job, segment.step] -= 1
            if not self.left[segment.job, segment.step]:
                self._release(segment.job, segment.step + 1, slot + self.limits.num_stages)

    def _release(self, job: str, step: int, earliest: int) -> None:
        for index in self.members.get((job, step), ()):
            self.earliest[index] = max(self.earliest[index], earliest)
            self.blocked_by[index] -= 1
            if not self.blocked_by[index]:
                heapq.heappush(self.waiting, (self.earliest[index], index))
