"""Check a plan against the work it has to do, independently of how it was made.

Only the plan format is shared with the planner. A plan is good when the list of violations is empty:

    coverage   the multiset of (job, step, draw, tokens) that the plan runs is the one that the work asks for
    capacity   each microbatch, every segment padded to whole tiles, is within the token capacity
    shape      a job has at most one segment in a microbatch; no empty segment; whole slots of replicas
    order      the steps of a job come one after the other, never interleaved
    distance   num_stages slots or more lie from the last microbatch of a step to the first of the job's next step, all
               replicas counted, and the distance still owed to what ran before the plan is kept
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from multigraft.planner.plan import JobWork, Microbatch, Plan, PlanLimits

MAX_IN_MESSAGE = 5


class ViolationKind(StrEnum):
    """What rule a plan breaks."""

    COVERAGE = "Coverage"
    CAPACITY = "Capacity"
    SHAPE = "Shape"
    ORDER = "Order"
    DISTANCE = "Distance"


@dataclass(frozen=True)
class Violation:
    """One broken rule; `position` is the index of the microbatch, -1 where none applies."""

    kind: ViolationKind
    position: int
    message: str


class PlanRefusedError(ValueError):
    """A plan broke a rule and must not run."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        shown = "; ".join(f"{v.kind} at microbatch {v.position}: {v.message}" for v in violations[:MAX_IN_MESSAGE])
        more = f"; {len(violations) - MAX_IN_MESSAGE} more" if len(violations) > MAX_IN_MESSAGE else ""
        super().__init__(f"plan refused: {shown}{more}")
        self.violations = tuple(violations)


def verify_plan(
    plan: Plan, work: Sequence[JobWork], *, earliest_slots: Mapping[str, int] | None = None
) -> list[Violation]:
    """List every rule that the plan breaks; an empty list means that it may run.

    Args:
        plan: The plan to check.
        work: What the plan has to do, each job once.
        earliest_slots: Slot before which a job's first step in this plan must not start.
    """
    return [
        *_find_bad_limits(plan.limits),
        *_find_coverage(plan, work),
        *_find_bad_microbatches(plan),
        *_find_bad_steps(plan, earliest_slots or {}),
    ]


def require_valid(plan: Plan, work: Sequence[JobWork], *, earliest_slots: Mapping[str, int] | None = None) -> Plan:
    """Give the plan back if it breaks no rule.

    Raises:
        PlanRefusedError: With every violation.
    """
    violations = verify_plan(plan, work, earliest_slots=earliest_slots)
    if violations:
        raise PlanRefusedError(violations)
    return plan


def _find_bad_limits(limits: PlanLimits) -> Iterator[Violation]:
    for name in ("token_capacity", "tile_tokens", "num_stages", "num_replicas"):
        value = getattr(limits, name)
        if value < 1:
            yield Violation(ViolationKind.SHAPE, -1, f"{name} is {value}, allowed 1 or more")


def _find_coverage(plan: Plan, work: Sequence[JobWork]) -> Iterator[Violation]:
    want = Counter(
        (job.job, batch.step, sample.draw, sample.num_tokens)
        for job in work
        for batch in job.global_batches
        for sample in batch.samples
    )
    got = Counter(
        (segment.job, segment.step, sample.draw, sample.num_tokens)
        for microbatch in plan.microbatches
        for segment in microbatch.segments
        for sample in segment.samples
    )
    for (job, step, draw, num_tokens), count in sorted((want - got).items()):
        text = f"job {job}, step {step}, draw {draw} of {num_tokens} tokens: {count} visit(s) missing"
        yield Violation(ViolationKind.COVERAGE, -1, text)
    for (job, step, draw, num_tokens), count in sorted((got - want).items()):
        text = f"job {job}, step {step}, draw {draw} of {num_tokens} tokens: {count} visit(s) not asked for"
        yield Violation(ViolationKind.COVERAGE, -1, text)


def _find_bad_microbatches(plan: Plan) -> Iterator[Violation]:
    limits = plan.limits
    if limits.num_replicas > 0 and len(plan.microbatches) % limits.num_replicas:
        text = f"{len(plan.microbatches)} microbatches are not whole slots of {limits.num_replicas} replicas"
        yield Violation(ViolationKind.SHAPE, -1, text)
    for position, microbatch in enumerate(plan.microbatches):
        yield from _find_bad_segments(position, microbatch)
        load = _count_padded(microbatch, limits)
        if load > limits.token_capacity:
            text = f"{load} tokens in whole tiles, the capacity is {limits.token_capacity}"
            yield Violation(ViolationKind.CAPACITY, position, text)


def _find_bad_segments(position: int, microbatch: Microbatch) -> Iterator[Violation]:
    for job, count in Counter(segment.job for segment in microbatch.segments).items():
        if count > 1:
            yield Violation(ViolationKind.SHAPE, position, f"job {job} has {count} segments, allowed 1")
    for segment in microbatch.segments:
        if not segment.samples:
            yield Violation(
                ViolationKind.SHAPE, position, f"job {segment.job}, step {segment.step}: segment without samples"
            )
        for sample in segment.samples:
            if sample.num_tokens < 1:
                text = f"job {segment.job}, draw {sample.draw}: {sample.num_tokens} tokens, allowed 1 or more"
                yield Violation(ViolationKind.SHAPE, position, text)


def _count_padded(microbatch: Microbatch, limits: PlanLimits) -> int:
    tile = max(1, limits.tile_tokens)
    load = 0
    for segment in microbatch.segments:
        tokens = sum(sample.num_tokens for sample in segment.samples)
        load += tokens + -tokens % tile
    return load


@dataclass
class _Running:
    step: int
    first_slot: int
    last_slot: int


def _find_bad_steps(plan: Plan, earliest_slots: Mapping[str, int]) -> Iterator[Violation]:
    running: dict[str, _Running] = {}
    for position, microbatch in enumerate(plan.microbatches):
        slot = position // max(1, plan.limits.num_replicas)
        for segment in microbatch.segments:
            before = running.get(segment.job)
            if before is None:
                owed = earliest_slots.get(segment.job, 0)
                if slot < owed:
                    text = f"job {segment.job}, step {segment.step} starts in slot {slot}, allowed {owed} or later"
                    yield Violation(ViolationKind.DISTANCE, position, text)
                running[segment.job] = _Running(segment.step, slot, slot)
            elif segment.step == before.step:
                before.last_slot = slot
            else:
                yield from _check_next_step(plan.limits, position, slot, segment.job, segment.step, before)
                running[segment.job] = _Running(segment.step, slot, slot)


def _check_next_step(
    limits: PlanLimits, position: int, slot: int, job: str, step: int, before: _Running
) -> Iterator[Violation]:
    if step != before.step + 1:
        text = f"job {job}: step {step} after step {before.step}, allowed {before.step} or {before.step + 1}"
        yield Violation(ViolationKind.ORDER, position, text)
    if slot < before.last_slot + limits.num_stages:
        text = (
            f"job {job}: step {step} starts in slot {slot}, step {before.step} ends in slot {before.last_slot}, "
            f"at least {limits.num_stages} slots must lie from one to the other"
        )
        yield Violation(ViolationKind.DISTANCE, position, text)
