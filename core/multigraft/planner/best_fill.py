"""Fill one microbatch after the other as far as it goes, straight from the jobs' queues.

At each position the job that is furthest behind leads: the microbatch takes its longest waiting sample and as much of
its current step as fills best; what room is left goes to the next jobs in line until the microbatch is full enough.
A job whose step is complete comes back num_stages slots later with its next one, so steps never wait for a round to
end: the tail of one job's step shares a microbatch with the head of another's. A leading job runs through its step
before the next one leads, which staggers the jobs and keeps their distances without no-ops.

    target    tokens (in whole tiles) that a microbatch aims at; below the capacity where a pipeline would starve
    enough    share of the target at which no further job is added; below 1 keeps microbatches to few adapters
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from multigraft.planner.order import NO_OP
from multigraft.planner.plan import JobWork, Microbatch, PlanLimits, SampleRef, Segment
from multigraft.planner.subset_sum import choose_subset

WINDOW_SAMPLES = 512  # of a long queue that are looked at for one microbatch


@dataclass(frozen=True)
class FillPolicy:
    """How full a microbatch is made."""

    target_tokens: int
    enough: float = 1.0


def fill_best(
    work: Sequence[JobWork],
    limits: PlanLimits,
    policy: FillPolicy,
    earliest_slots: Mapping[str, int] | None = None,
) -> list[Microbatch]:
    """Give all of the work as microbatches in execution order, no-ops where no job may run, in whole slots.

    Args:
        work: What to run; `check_work` passed.
        limits: What the machine takes.
        policy: How full a microbatch is made.
        earliest_slots: Per job, the first slot in which its first step here may start.
    """
    earliest = earliest_slots or {}
    queues = [_Queue(index, job, earliest.get(job.job, 0)) for index, job in enumerate(work) if job.global_batches]
    microbatches: list[Microbatch] = []
    while queues or len(microbatches) % limits.num_replicas:
        slot = len(microbatches) // limits.num_replicas
        ready = sorted((queue for queue in queues if queue.earliest_slot <= slot), key=_Queue.rank)
        microbatches.append(_fill_one(ready, limits, policy))
        for queue in ready:
            queue.finish_step(slot + limits.num_stages)
        queues = [queue for queue in queues if queue.waiting]
    return microbatches


@dataclass
class _Queue:
    """What waits of one job: the samples of its current step, longest first."""

    index: int
    work: JobWork
    earliest_slot: int
    steps_done: int = 0
    waiting: list[SampleRef] = field(init=False)
    waiting_tokens: int = field(init=False)
    step_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self._load()

    def rank(self) -> tuple[float, int, float, int]:
        """Order jobs by how far they are behind; at equal progress by priority, then by how near the step's end is."""
        progress = self.steps_done / len(self.work.global_batches)
        return progress, -self.work.priority, self.waiting_tokens / self.step_tokens, self.index

    def take(self, room: int, *, longest: bool) -> list[SampleRef]:
        """Remove the samples that fill `room` tokens best; if so asked the longest is among them, even beyond it."""
        chosen = [0] if longest else []
        room -= sum(self.waiting[i].num_tokens for i in chosen)
        window = self._spread_window(len(chosen), room)
        chosen += [window[i] for i in choose_subset([self.waiting[i].num_tokens for i in window], room)]
        taken = [self.waiting[i] for i in chosen]
        for i in reversed(chosen):
            del self.waiting[i]
        self.waiting_tokens -= sum(sample.num_tokens for sample in taken)
        return taken

    def _spread_window(self, start: int, room: int) -> range:
        """Give the samples to choose among: all from `start` on, or evenly spaced ones that fill the room twice."""
        num_waiting = len(self.waiting) - start
        wanted = max(WINDOW_SAMPLES, 2 * room * len(self.waiting) // self.waiting_tokens)
        return range(start, len(self.waiting), max(1, num_waiting // wanted))

    def finish_step(self, next_slot: int) -> None:
        if not self.waiting:
            self.steps_done += 1
            self.earliest_slot = next_slot
            if self.steps_done < len(self.work.global_batches):
                self._load()

    def build_segment(self, samples: Sequence[SampleRef]) -> Segment:
        return Segment(self.work.job, self.work.global_batches[self.steps_done].step, tuple(sorted(samples)))

    def _load(self) -> None:
        samples = self.work.global_batches[self.steps_done].samples
        self.waiting = sorted(samples, key=lambda sample: (-sample.num_tokens, sample.draw))
        self.waiting_tokens = self.step_tokens = sum(sample.num_tokens for sample in samples)


def _fill_one(ready: Sequence[_Queue], limits: PlanLimits, policy: FillPolicy) -> Microbatch:
    tile = limits.tile_tokens
    target = policy.target_tokens // tile * tile
    used = 0
    segments: list[tuple[int, Segment]] = []
    for queue in ready:
        if used >= policy.enough * target:
            break
        samples = queue.take((target - used) // tile * tile, longest=not segments)
        if samples:
            segments.append((queue.index, queue.build_segment(samples)))
            used += -(-segments[-1][1].num_tokens // tile) * tile
    return (
        Microbatch(tuple(segment for _, segment in sorted(segments, key=lambda pair: pair[0]))) if segments else NO_OP
    )
