"""Build conditions: `lastTransitionTime` moves only with `status`, and a changed one becomes one Event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from multigraft.api.conditions import Condition, ConditionStatus, JobCondition

MAX_MESSAGE_CHARS = 1024
UNTOLD = frozenset({JobCondition.VALIDATED, JobCondition.QUOTA_RESERVED, JobCondition.LOADED})
"""Conditions that are no news when they become True: another one tells it at the same time."""


@dataclass(frozen=True)
class Fact:
    """What a condition is to say."""

    status: ConditionStatus
    reason: str
    message: str = ""


def is_true(reason: str, message: str = "") -> Fact:
    return Fact(ConditionStatus.TRUE, reason, message)


def is_false(reason: str, message: str = "") -> Fact:
    return Fact(ConditionStatus.FALSE, reason, message)


def is_unknown(reason: str, message: str = "") -> Fact:
    return Fact(ConditionStatus.UNKNOWN, reason, message)


def format_time(moment: datetime) -> str:
    """Write a moment as the API server does: RFC 3339, UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """Read an RFC 3339 time."""
    return datetime.fromisoformat(text)


def find_condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """Give the condition of a type; None if it is not set."""
    return next((condition for condition in conditions if condition.type == kind), None)


def holds(conditions: Iterable[Condition], kind: str) -> bool:
    """Tell whether the condition of a type is True."""
    condition = find_condition(conditions, kind)
    return condition is not None and condition.status is ConditionStatus.TRUE


def build_conditions(
    old: Sequence[Condition], facts: Mapping[str, Fact], *, generation: int, now: datetime
) -> list[Condition]:
    """Build the conditions of `facts`, in their order; what `old` says of the time of a status is kept."""
    built = []
    for kind, fact in facts.items():
        before = find_condition(old, kind)
        same = before is not None and before.status is fact.status
        built.append(
            Condition(
                type=kind,
                status=fact.status,
                observed_generation=generation,
                last_transition_time=before.last_transition_time if before is not None and same else format_time(now),
                reason=fact.reason,
                message=fact.message[:MAX_MESSAGE_CHARS],
            )
        )
    return built


def find_changed(old: Sequence[Condition], new: Sequence[Condition]) -> list[Condition]:
    """Give the conditions whose status or reason is new and worth telling: an initial Unknown or False is not."""
    changed = []
    for condition in new:
        before = find_condition(old, condition.type)
        if before is None and condition.status is not ConditionStatus.TRUE and condition.type != "Admitted":
            continue
        if condition.status is ConditionStatus.UNKNOWN:
            continue
        if condition.status is ConditionStatus.TRUE and condition.type in UNTOLD:
            continue
        if before is None or (before.status, before.reason) != (condition.status, condition.reason):
            changed.append(condition)
    return changed
