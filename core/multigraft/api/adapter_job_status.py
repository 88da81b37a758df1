"""What is known about an AdapterJob. Written by the operator alone, seldom: figures of every step are metrics."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from multigraft.api.conditions import Condition, Status, Timestamp
from multigraft.api.schema import INT32_MAX, Choice, map_by

ShortText = Annotated[str, Field(max_length=253)]
Uri = Annotated[str, Field(max_length=1024)]


class JobPhase(StrEnum):
    """Summary for display, derived from the conditions."""

    PENDING = "Pending"
    QUEUED = "Queued"
    ADMITTED = "Admitted"
    LOADING = "Loading"
    RUNNING = "Running"
    CHECKPOINTING = "Checkpointing"
    PREEMPTED = "Preempted"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Assignment(Status):
    """The slot that the job has."""

    pool: ShortText = Field(description="Name of the BaseModelPool.")
    pod: ShortText = Field(description="Name of the trainer pod.")
    pod_uid: ShortText | None = Field(
        default=None, description="metadata.uid of that pod; a pod of the same name with another uid is a new one."
    )
    slot: int | None = Field(
        default=None, ge=0, le=255, description="Slot number on that pod, once the trainer has told it."
    )
    accelerator: ShortText | None = Field(default=None, description="Device kind of the pod.")
    epoch: int = Field(ge=0, description="Lease epoch of the operator that assigned it; trainers refuse lower ones.")
    admitted_time: Timestamp = Field(description="When the slot was assigned.")


class Progress(Status):
    """How far training is; rounded and throttled."""

    step: int = Field(ge=0, le=INT32_MAX, description="Optimizer steps taken.")
    max_steps: int = Field(ge=0, le=INT32_MAX, description="Optimizer steps planned.")
    display: ShortText = Field(description="`step/maxSteps`, for display.")
    percentage: int = Field(ge=0, le=100, description="Steps taken, in percent of those planned.")
    tokens: int = Field(ge=0, description="Real tokens trained on, padding not counted.")
    skipped_steps: int = Field(
        default=0, ge=0, le=INT32_MAX, description="Steps skipped as loss or gradient was not finite."
    )
    peak_learning_rate: ShortText | None = Field(default=None, description="Highest learning rate reached so far.")
    estimated_remaining_seconds: int | None = Field(default=None, ge=0, description="Estimated seconds to the end.")
    updated_time: Timestamp = Field(description="When this was measured.")


class Metric(Status):
    """One figure as text, so that a non-finite one stays what it is."""

    name: ShortText = Field(description="loss, evalLoss, learningRate or gradNorm.")
    value: Annotated[str, Field(max_length=64)] = Field(description="The figure; `NaN` and `Inf` are written as such.")


class DroppedRows(Status):
    """Rows left out for one reason."""

    reason: ShortText = Field(description="Why.")
    count: int = Field(ge=0, description="How many.")


class DatasetCounts(Status):
    """What became of the dataset's rows: read = used + dropped."""

    rows_read: int = Field(ge=0, description="Rows in the dataset.")
    rows_used: int = Field(ge=0, description="Rows that are trained on.")
    rows_truncated: int = Field(default=0, ge=0, description="Used rows whose end was cut at `maxSeqLength`.")
    supervised_tokens: int = Field(default=0, ge=0, description="Tokens per epoch that carry a loss.")
    dropped: list[DroppedRows] = Field(
        default_factory=list, max_length=16, json_schema_extra=map_by("reason"), description="Rows left out, by reason."
    )


class Checkpoints(Status):
    """The newest good checkpoint."""

    latest_step: int = Field(ge=0, le=INT32_MAX, description="Optimizer steps it holds.")
    latest_uri: Uri = Field(description="Where it lies.")
    time: Timestamp = Field(description="When it was complete.")


class OutputStatus(Status):
    """The finished adapter."""

    uri: Uri = Field(description="Folder of the PEFT adapter.")
    digest: Annotated[str, Field(max_length=128)] = Field(
        description="`sha256:` and the hash of adapter_model.safetensors."
    )
    bytes: int = Field(ge=0, description="Size of adapter_model.safetensors.")
    rank: int = Field(ge=1, le=512, description="LoRA rank that a server must allow.")


class AdapterJobStatus(Status):
    """What is known about an AdapterJob."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="Generation of the spec that this status speaks of."
    )
    phase: Choice[JobPhase] | None = Field(
        default=None, description="Summary for display, derived from the conditions."
    )
    reason: ShortText | None = Field(default=None, description="Reason of the current phase, for display.")
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=map_by("type"),
        description="Validated, QuotaReserved, Admitted, Loaded, Running, Preempted, Suspended, Succeeded, Failed.",
    )
    assignment: Assignment | None = Field(default=None, description="The slot that the job has.")
    queue_position: int | None = Field(default=None, ge=0, le=INT32_MAX, description="Jobs ahead of this one; coarse.")
    progress: Progress | None = Field(default=None, description="How far training is.")
    metrics: list[Metric] = Field(
        default_factory=list, max_length=16, json_schema_extra=map_by("name"), description="Latest figures, by name."
    )
    dataset: DatasetCounts | None = Field(default=None, description="What became of the dataset's rows.")
    checkpoints: Checkpoints | None = Field(default=None, description="The newest good checkpoint.")
    output: OutputStatus | None = Field(default=None, description="The finished adapter.")
    attempts: int = Field(
        default=0, ge=0, le=INT32_MAX, description="Times the job was started; bounded by `backoffLimit`."
    )
    preemptions: int = Field(default=0, ge=0, le=INT32_MAX, description="Times the job lost its slot to another.")
    start_time: Timestamp | None = Field(default=None, description="When the job first ran.")
    completion_time: Timestamp | None = Field(default=None, description="When the job succeeded or failed.")
