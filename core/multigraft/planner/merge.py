"""Fill the room that packing by rounds leaves with samples of later microbatches.

Each microbatch, from the first on, takes in what fits of the emptiest ones among the next: whole ones first, which then
vanish, else the samples that fill best. A sample moves only to where its step may run: not into a microbatch with
another step of its job, and not nearer than num_stages slots to its job's step before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

from multigraft.planner.plan import Microbatch, PlanLimits, SampleRef, Segment
from multigraft.planner.subset_sum import choose_subset

LOOK_AHEAD = 16  # microbatches; about two rounds of four adapters


def merge_microbatches(
    microbatches: Sequence[Microbatch], limits: PlanLimits, earliest_slots: Mapping[str, int] | None = None
) -> list[Microbatch]:
    """Give the microbatches with their room filled, emptied ones left out, otherwise in the same order.

    Args:
        microbatches: In the order in which they are to run; no-ops count as places.
        limits: What the machine takes.
        earliest_slots: Per job, the first slot in which its first step here may start.
    """
    merger = _Merger(microbatches, limits, earliest_slots or {})
    for place in range(len(microbatches)):
        merger.fill(place)
    return [
        merger.build(place) for place in range(len(microbatches)) if merger.contents[place] or merger.is_no_op[place]
    ]


class _Merger:
    def __init__(
        self, microbatches: Sequence[Microbatch], limits: PlanLimits, earliest_slots: Mapping[str, int]
    ) -> None:
        self.limits = limits
        self.earliest_slots = earliest_slots
        self.is_no_op = [not microbatch.segments for microbatch in microbatches]
        self.contents = [{s.job: (s.step, list(s.samples)) for s in m.segments} for m in microbatches]
        self.tokens = [{s.job: s.num_tokens for s in m.segments} for m in microbatches]
        self.loads = [microbatch.padded_tokens(limits.tile_tokens) for microbatch in microbatches]
        self.places: dict[tuple[str, int], list[int]] = defaultdict(list)  # ascending
        self.job_order: dict[str, int] = {}
        for place, microbatch in enumerate(microbatches):
            for segment in microbatch.segments:
                self.places[segment.job, segment.step].append(place)
                self.job_order.setdefault(segment.job, len(self.job_order))

    def fill(self, place: int) -> None:
        if not self.contents[place]:
            return
        window = [q for q in range(place + 1, min(place + 1 + LOOK_AHEAD, len(self.contents))) if self.contents[q]]
        emptiest = sorted(window, key=lambda q: (self.loads[q], q))
        for q in emptiest:
            if all(self._may_move(job, step, place) for job, (step, _) in self.contents[q].items()):
                self._move_all(q, place)
        for q in emptiest:
            self._move_some(q, place)

    def build(self, place: int) -> Microbatch:
        jobs = sorted(self.contents[place], key=lambda job: self.job_order[job])
        return Microbatch(
            tuple(
                Segment(job, self.contents[place][job][0], tuple(sorted(self.contents[place][job][1]))) for job in jobs
            )
        )

    def _may_move(self, job: str, step: int, place: int) -> bool:
        if self.contents[place].get(job, (step, []))[0] != step:
            return False
        slot = place // self.limits.num_replicas
        before = self.places.get((job, step - 1))
        if not before:
            return slot >= self.earliest_slots.get(job, 0)
        return slot >= before[-1] // self.limits.num_replicas + self.limits.num_stages

    def _move_all(self, source: int, place: int) -> None:
        extra = sum(
            self._tiles(self._tokens(place, job) + self._tokens(source, job)) - self._tiles(self._tokens(place, job))
            for job in self.contents[source]
        )
        if self.loads[place] + extra <= self.limits.token_capacity:
            for job in list(self.contents[source]):
                self._move(job, self.contents[source][job][1], source, place)

    def _move_some(self, source: int, place: int) -> None:
        for job in list(self.contents[source]):
            step, samples = self.contents[source][job]
            if not self._may_move(job, step, place):
                continue
            own = self._tokens(place, job)
            free = self.limits.token_capacity - self.loads[place]
            room = self._tiles(own) + free // self.limits.tile_tokens * self.limits.tile_tokens - own
            longest_first = sorted(samples, key=lambda sample: (-sample.num_tokens, sample.draw))
            chosen = choose_subset([sample.num_tokens for sample in longest_first], room)
            self._move(job, [longest_first[i] for i in chosen], source, place)

    def _move(self, job: str, samples: Sequence[SampleRef], source: int, place: int) -> None:
        if not samples:
            return
        step, own = self.contents[source][job]
        moved = set(samples)
        target = self.contents[place].setdefault(job, (step, []))[1]
        target.extend(samples)
        self.contents[source][job] = (step, [sample for sample in own if sample not in moved])
        self._add_tokens(job, sum(sample.num_tokens for sample in samples), source, place)
        places = self.places[job, step]
        if place not in places:
            places.insert(bisect_left(places, place), place)
        if not self.contents[source][job][1]:
            del self.contents[source][job]
            places.remove(source)

    def _add_tokens(self, job: str, num_tokens: int, source: int, place: int) -> None:
        for where, change in ((source, -num_tokens), (place, num_tokens)):
            before = self._tokens(where, job)
            self.tokens[where][job] = before + change
            self.loads[where] += self._tiles(before + change) - self._tiles(before)

    def _tokens(self, place: int, job: str) -> int:
        return self.tokens[place].get(job, 0)

    def _tiles(self, tokens: int) -> int:
        return -(-tokens // self.limits.tile_tokens) * self.limits.tile_tokens
