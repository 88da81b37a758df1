"""What is known about a BaseModelPool. Written by the operator alone."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from multigraft.api.conditions import Condition, Status, Timestamp
from multigraft.api.schema import INT32_MAX, SET, Choice, map_by

ShortText = Annotated[str, Field(max_length=253)]


class TrainerPhase(StrEnum):
    """Summary of a trainer pod, for display."""

    PENDING = "Pending"
    LOADING = "Loading"
    READY = "Ready"
    DRAINING = "Draining"
    FAILED = "Failed"


class SlotCounts(Status):
    """Slots over all ready replicas."""

    total: int = Field(ge=0, le=INT32_MAX, description="Slots there are.")
    used: int = Field(ge=0, le=INT32_MAX, description="Slots that hold an adapter.")
    free: int = Field(ge=0, le=INT32_MAX, description="Slots that hold none.")
    display: ShortText = Field(description="`used/total`, for display.")


class QueueCounts(Status):
    """Jobs of this pool."""

    pending: int = Field(ge=0, le=INT32_MAX, description="Jobs that wait for a slot.")
    running: int = Field(ge=0, le=INT32_MAX, description="Jobs in a slot.")


class TrainerPod(Status):
    """One trainer pod."""

    name: ShortText = Field(description="Name of the pod.")
    node: ShortText | None = Field(default=None, description="Node that it runs on.")
    accelerator: ShortText | None = Field(default=None, description="Device kind.")
    phase: Choice[TrainerPhase] = Field(description="Summary for display.")
    slots_used: int = Field(ge=0, le=256, description="Slots that hold an adapter.")
    jobs: list[ShortText] = Field(
        default_factory=list, max_length=256, json_schema_extra=SET, description="Jobs in its slots, as namespace/name."
    )
    epoch: int = Field(ge=0, description="Highest Lease epoch that the trainer has obeyed.")


class Throughput(Status):
    """Measured speed; throttled."""

    tokens_per_second: int = Field(ge=0, description="Real tokens per second over all pods.")
    updated_time: Timestamp = Field(description="When this was measured.")


class BaseModelPoolStatus(Status):
    """What is known about a BaseModelPool."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="Generation of the spec that this status speaks of."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=map_by("type"),
        description="Ready, Progressing, ModelLoaded, CapacityAvailable, Draining, Degraded.",
    )
    replicas: int = Field(default=0, ge=0, le=INT32_MAX, description="Replicas there are.")
    ready_replicas: int = Field(default=0, ge=0, le=INT32_MAX, description="Replicas that can train.")
    ready: ShortText | None = Field(default=None, description="`readyReplicas/replicas`, for display.")
    selector: Annotated[str, Field(max_length=1024)] | None = Field(
        default=None, description="Label selector of the trainer pods, for the scale subresource."
    )
    slots: SlotCounts | None = Field(default=None, description="Slots over all ready replicas.")
    queue: QueueCounts | None = Field(default=None, description="Jobs of this pool.")
    pods: list[TrainerPod] = Field(
        default_factory=list, max_length=64, json_schema_extra=map_by("name"), description="Trainer pods, by name."
    )
    throughput: Throughput | None = Field(default=None, description="Measured speed.")
