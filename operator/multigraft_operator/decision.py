"""What the operator will do: the answer of `decide`, carried out by `apply`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from multigraft.api.control import Assignments
from multigraft_operator.observed import JobView, PodView, PoolView


@dataclass(frozen=True)
class EventNote:
    """One Kubernetes Event: a condition of an object changed."""

    kind: str
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    is_warning: bool = False


@dataclass(frozen=True)
class StatusWrite:
    """The whole new status of an object, and what to tell once it is written."""

    target: JobView | PoolView
    status: Mapping[str, Any]
    events: tuple[EventNote, ...] = ()
    is_quiet: bool = False  # only figures or wording changed


@dataclass(frozen=True)
class FinalizerWrite:
    """Put the finalizer on an object, or take it off."""

    target: JobView | PoolView
    wanted: bool


@dataclass(frozen=True)
class DesiredTrainer:
    """The whole desired set of one trainer."""

    pod: PodView
    assignments: Assignments


@dataclass(frozen=True)
class Decision:
    """All actions of one pass; in this order each crash between two of them is cured by the next pass."""

    finalizers_on: tuple[FinalizerWrite, ...] = ()
    statuses: tuple[StatusWrite, ...] = ()
    trainers: tuple[DesiredTrainer, ...] = ()
    finalizers_off: tuple[FinalizerWrite, ...] = ()
    expired_jobs: tuple[JobView, ...] = ()
    pools_to_build: tuple[PoolView, ...] = ()
    pending_by_reason: Mapping[str, int] = field(default_factory=dict)
