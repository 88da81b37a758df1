"""Conditions: the truth about an object, as Kubernetes' API conventions define them; `phase` is derived from them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from multigraft.api.schema import Choice


class Status(BaseModel):
    """Base of every object of a status: what a newer operator added is passed over, not refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", strict=True, frozen=True)


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class JobCondition(StrEnum):
    """Condition types of an AdapterJob; all are set, Unknown at first. Summary: Succeeded."""

    VALIDATED = "Validated"  # the spec fits its pool and its inputs were read
    QUOTA_RESERVED = "QuotaReserved"  # the tenant's queue has room for it
    ADMITTED = "Admitted"  # a slot of a pod is assigned
    LOADED = "Loaded"  # the trainer confirmed the adapter in its slot
    RUNNING = "Running"  # the trainer reports steps
    PREEMPTED = "Preempted"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class PoolCondition(StrEnum):
    """Condition types of a BaseModelPool; all are set, Unknown at first. Summary: Ready."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    MODEL_LOADED = "ModelLoaded"
    CAPACITY_AVAILABLE = "CapacityAvailable"
    DRAINING = "Draining"
    DEGRADED = "Degraded"


Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"}, max_length=64)]
"""RFC 3339 in UTC, as in `2026-01-31T12:00:00Z`."""


class Condition(Status):
    """One observed fact about the object."""

    type: Annotated[str, Field(min_length=1, max_length=316)] = Field(description="Which fact.")
    status: Choice[ConditionStatus] = Field(description="True, False, or Unknown.")
    observed_generation: int | None = Field(
        default=None, ge=0, description="Generation of the spec that this speaks of."
    )
    last_transition_time: Timestamp = Field(description="When `status` last changed.")
    reason: Annotated[
        str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ] = Field(description="Stable machine-readable reason, CamelCase.")
    message: Annotated[str, Field(max_length=32768)] = Field(
        description="For people: what is needed, free, and who holds it."
    )
