"""Which folder belongs to which job: no two jobs write into the same one or into one another's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.roots import Location


class Strength(IntEnum):
    """Who keeps a folder that two jobs want; of equals the first."""

    HELD = 0  # the job trains, or its adapter lies there
    DEFAULT = 1  # the folder that bears the job's name
    ASKED = 2  # the job's spec names it


@dataclass(frozen=True)
class OutputClaim:
    """One job and a folder that it writes."""

    job: str  # namespace/name
    location: Location
    strength: Strength


def refuse_overlaps(claims: Iterable[OutputClaim]) -> dict[str, RefusalError]:
    """Give, by job, the refusal (INVALID_SPEC) of each claim that meets a stronger one of another job. Pure."""
    granted: list[OutputClaim] = []
    refused: dict[str, RefusalError] = {}
    for claim in sorted(claims, key=lambda claim: claim.strength):  # stable
        other = next((earlier for earlier in granted if _overlap(claim, earlier)), None)
        if other is None:
            granted.append(claim)
        else:
            refused.setdefault(claim.job, _refuse(claim, other))
    return refused


def _overlap(claim: OutputClaim, other: OutputClaim) -> bool:
    one, two = claim.location.place, other.location.place
    return claim.job != other.job and (one.is_within(two) or two.is_within(one))


def _refuse(claim: OutputClaim, other: OutputClaim) -> RefusalError:
    text = (
        f"{claim.location.field} of {claim.job} ({claim.location.shown}) and the folder of {other.job} "
        f"({other.location.shown}) lie in one another; each job needs a folder of its own"
    )
    return RefusalError(Reason.INVALID_SPEC, text)
