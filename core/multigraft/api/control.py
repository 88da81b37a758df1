"""The control protocol between operator and trainer: the desired set that one sends, the state that the other tells.

    PUT /v1/assignments   body `Assignments`: everything this trainer should have, each time; answers `TrainerState`
    GET /v1/state         answers `TrainerState`: what is true now

Level-based: a set says what should be, never what to do, so a set that is sent twice changes nothing and a lost answer
is cured by sending it again. A set whose epoch is lower than the highest one seen is refused with 409. Every answer
that is not 2xx has a `ControlError` as its body. JSON, camelCase keys, no NaN and no infinity: a figure that is unknown
or not finite is left out or null. A request with an unknown field is refused; unknown fields of an answer are passed
over, so a trainer may be newer than its operator.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Base64Encoder, ConfigDict, EncodedBytes, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from multigraft.api.adapter_job import AdapterJob, AdapterJobSpec
from multigraft.api.conditions import Status
from multigraft.api.schema import (
    DNS_LABEL_PATTERN,
    INT64_MAX,
    Choice,
    ObjectMeta,
    ObjectName,
    Spec,
)

ASSIGNMENTS_PATH = "/v1/assignments"
STATE_PATH = "/v1/state"

MAX_JOBS = 1024
MAX_INLINE_BYTES = 1 << 20  # what a ConfigMap can hold
_MAX_BASE64 = 4 * -(-MAX_INLINE_BYTES // 3)

Namespace = Annotated[str, Field(pattern=DNS_LABEL_PATTERN, min_length=1, max_length=63)]
Uid = Annotated[str, Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z-]*$", min_length=1, max_length=64)]
Epoch = Annotated[int, Field(ge=0, le=INT64_MAX)]


class ObjectId(Spec):
    """One object of the API server; another object of the same name has another `uid`."""

    namespace: Namespace = Field(description="Namespace of the object.")
    name: ObjectName = Field(description="Name of the object.")
    uid: Uid = Field(description="metadata.uid.")

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class StrictBase64(Base64Encoder):
    """Base64 as RFC 4648 has it: a foreign character is an error, not passed over."""

    @classmethod
    def decode(cls, data: bytes) -> bytes:
        """Decode; raises PydanticCustomError."""
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise PydanticCustomError("base64", "want base64") from error


class InlineRows(Spec):
    """The rows of a `configMapRef`: the operator reads the ConfigMap, a trainer has no rights on the API server."""

    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = Field(
        description="Key of the ConfigMap that the rows come from; its suffix says how they are read."
    )
    content: Annotated[bytes, Field(max_length=_MAX_BASE64), EncodedBytes(encoder=StrictBase64)] = Field(
        description="Bytes of the file, base64 in JSON; at most 1 MiB before base64."
    )


class AssignedJob(Spec):
    """One job that the trainer should have."""

    id: ObjectId = Field(description="The AdapterJob. The same uid resumes from its checkpoint; another starts anew.")
    generation: int = Field(
        ge=0, le=INT64_MAX, description="metadata.generation of `spec`; told back in the state once it is obeyed."
    )
    attempt: int = Field(
        default=0,
        ge=0,
        le=INT64_MAX,
        description="Which try this is. A job that Failed is tried again, from its checkpoint, when this is higher.",
    )
    spec: AdapterJobSpec = Field(
        description="spec of the AdapterJob, defaults included. `suspend` true: checkpoint, give the slot back and be "
        "Stopped. `priority`: order of joining where slots are few."
    )
    rows: InlineRows | None = Field(
        default=None, description="Rows of `spec.dataset.configMapRef`; null when the ConfigMap or its key is missing."
    )

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.id.key

    def build_job(self) -> AdapterJob:
        """Build the AdapterJob that this assignment is of."""
        metadata = ObjectMeta(
            name=self.id.name, namespace=self.id.namespace, uid=self.id.uid, generation=self.generation
        )
        return AdapterJob(api_version="multigraft.dev/v1alpha1", kind="AdapterJob", metadata=metadata, spec=self.spec)


class Assignments(Spec):
    """The full desired set of one trainer. What is not in it is checkpointed, leaves its slot and is forgotten."""

    epoch: Epoch = Field(description="Lease epoch of the operator that decided; the trainer obeys no lower one again.")
    sequence: Annotated[int, Field(ge=0, le=INT64_MAX)] = Field(
        default=0,
        description="Grows with each set of a leader; one that comes late, after a newer one of its epoch, is refused.",
    )
    pool: ObjectId = Field(description="The BaseModelPool; a set for another pool is refused with 409.")
    pod: ObjectName | None = Field(
        default=None, description="Name of the pod that is meant; a set for another pod is refused with 409."
    )
    jobs: list[AssignedJob] = Field(max_length=MAX_JOBS, description="Jobs, each `namespace/name` once.")

    @model_validator(mode="after")
    def _name_each_job_once(self) -> Self:
        twice = sorted(key for key, count in Counter(job.key for job in self.jobs).items() if count > 1)
        if twice:
            raise PydanticCustomError("rule", "{text}", {"text": f"jobs: {', '.join(twice[:5])} more than once"})
        return self


class Answer(Status):
    """Base of what a trainer answers: unknown fields are passed over, numbers are finite."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
    )


class ControlReason(StrEnum):
    """Why a request was refused."""

    UNAUTHENTICATED = "Unauthenticated"  # 401: no bearer token, or not the trainer's
    STALE_EPOCH = "StaleEpoch"  # 409: a later leader has spoken; `currentEpoch` says which
    STALE_SET = "StaleSet"  # 409: a newer set of the same epoch came first
    WRONG_POOL = "WrongPool"  # 409: the trainer serves another pool
    WRONG_POD = "WrongPod"  # 409: the set is for another pod
    STOPPING = "Stopping"  # 503: the trainer checkpoints and ends
    INVALID_REQUEST = "InvalidRequest"  # 422: the body is not a desired set; the message names the field
    TOO_LARGE = "TooLarge"  # 413
    NOT_FOUND = "NotFound"  # 404
    METHOD_NOT_ALLOWED = "MethodNotAllowed"  # 405
    INTERNAL_ERROR = "InternalError"  # 500


class ControlError(Answer):
    """Body of every answer that is not 2xx."""

    reason: Choice[ControlReason] = Field(description="Machine-readable reason.")
    message: str = Field(max_length=4096, description="What was wrong, for people. Never holds a secret.")
    current_epoch: Epoch | None = Field(default=None, description="Highest epoch seen, with StaleEpoch.")


class BasePhase(StrEnum):
    LOADING = "Loading"
    READY = "Ready"
    FAILED = "Failed"


class BaseState(Answer):
    """The shared base model."""

    phase: Choice[BasePhase] = Field(description="Loading, Ready, or Failed (then the process ends soon).")
    reason: str | None = Field(default=None, description="With Failed: a `Reason`, such as BaseModelInvalid.")
    message: str | None = Field(default=None, description="With Failed: what is wrong, for people.")
    fingerprint: str | None = Field(default=None, description="Hash of what the base's results depend on.")
    bytes: int | None = Field(default=None, ge=0, description="Memory of the frozen weights.")
    device: str | None = Field(default=None, description="Where it lies: `cpu` or `cuda:0`.")


class Capacity(Answer):
    """What the trainer has room for."""

    slots: int = Field(ge=0, description="Adapters that train at once.")
    slots_in_use: int = Field(ge=0, description="Slots that hold an adapter now.")
    max_rank: int = Field(ge=1, description="Highest LoRA rank of a slot.")
    token_capacity: int | None = Field(
        default=None, ge=1, description="Tokens of one microbatch; null: Auto, and the base is not measured yet."
    )
    capacity_source: str | None = Field(
        default=None,
        description="Where that comes from: Spec; with Auto Measured, Cached, Estimated or Resumed; null: not known.",
    )
    tokens_per_second: float | None = Field(
        default=None, ge=0, description="Real tokens per second of training, over the last minute or so; null: idle."
    )


class TrainerJobPhase(StrEnum):
    """Where a job stands on this trainer."""

    WAITING = "Waiting"  # accepted; waits for the base, for intake or for a free slot (`reason` says which)
    LOADING = "Loading"  # rows, start adapter or checkpoint are being read
    RUNNING = "Running"  # holds a slot and trains
    CHECKPOINTING = "Checkpointing"  # is leaving its slot; its checkpoint is not complete yet
    SUCCEEDED = "Succeeded"  # adapter exported and checked
    FAILED = "Failed"  # `reason` and `message` say why
    STOPPED = "Stopped"  # checkpointed and out of its slot: suspended, or the trainer is ending


class JobReport(Answer):
    """What is true of one job. A job that ended is told of until the desired set drops it."""

    namespace: str = Field(description="Namespace of the AdapterJob.")
    name: str = Field(description="Name of the AdapterJob.")
    uid: str = Field(description="metadata.uid of the AdapterJob.")
    generation: int = Field(ge=0, description="Generation of the spec that is obeyed.")
    attempt: int = Field(default=0, ge=0, description="The try that this speaks of.")
    phase: Choice[TrainerJobPhase] = Field(description="Where the job stands.")
    reason: str | None = Field(default=None, description="A `Reason`: why it failed, waits or stopped.")
    message: str | None = Field(default=None, description="For people, with numbers.")
    slot: int | None = Field(default=None, ge=0, description="Slot that it holds; null: none.")
    step: int = Field(default=0, ge=0, description="Optimizer steps taken, those of earlier processes included.")
    total_steps: int | None = Field(default=None, ge=0, description="Optimizer steps in all; null: rows not read yet.")
    skipped_steps: int = Field(default=0, ge=0, description="Steps skipped as loss or gradient was not finite.")
    tokens: int = Field(default=0, ge=0, description="Real tokens trained, padding not counted.")
    seconds: float = Field(default=0.0, ge=0, description="Seconds in a slot, those of earlier processes included.")
    loss: float | None = Field(
        default=None, description="Loss of the last step, nats per supervised token; null: none yet or not finite."
    )
    learning_rate: float | None = Field(default=None, description="Learning rate of the last step.")
    grad_norm: float | None = Field(default=None, description="L2 norm of the last gradient, before clipping.")
    heldout_loss_before: float | None = Field(default=None, description="Held-out loss before training, nats.")
    heldout_loss_after: float | None = Field(default=None, description="Held-out loss after training, nats.")
    checkpoint_step: int | None = Field(
        default=None, ge=0, description="Steps in the newest complete checkpoint; null: none."
    )
    checkpoint_uri: str | None = Field(default=None, description="Folder of the job's checkpoints.")
    output_uri: str | None = Field(default=None, description="Folder of the adapter, once Succeeded.")
    output_digest: str | None = Field(
        default=None, description="`sha256:` and the hash of adapter_model.safetensors, once Succeeded."
    )
    output_bytes: int | None = Field(
        default=None, ge=0, description="Size of adapter_model.safetensors, once Succeeded."
    )
    rank: int = Field(ge=1, description="LoRA rank.")
    rows_read: int | None = Field(default=None, ge=0, description="Rows in the dataset; null: not read yet.")
    rows_used: int | None = Field(default=None, ge=0, description="Rows that are trained on.")
    rows_truncated: int | None = Field(default=None, ge=0, description="Used rows whose end was cut.")
    rows_dropped: dict[str, int] = Field(default_factory=dict, description="Rows left out, by reason.")

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class PlanState(Answer):
    """The plan that runs."""

    fill: float | None = Field(
        default=None, ge=0, le=1, description="Real tokens over the capacity of its microbatches."
    )
    microbatches: int = Field(ge=0, description="Microbatches of the plan.")
    lower_bound: int = Field(ge=0, description="Fewest microbatches that any plan of this work could have.")
    outcome: str = Field(description="How it was found, such as Optimal, Timeout or Greedy.")


class TrainerState(Answer):
    """What is true in one trainer process."""

    pod: str = Field(description="Name of the pod.")
    pool: str = Field(description="`namespace/name` of the pool that is served.")
    start_id: str = Field(description="Changes with each start of the process.")
    version: str = Field(description="Version of multigraft in the trainer.")
    epoch: Epoch = Field(description="Highest epoch obeyed; 0: none yet.")
    stopping: bool = Field(default=False, description="The process checkpoints its jobs and ends.")
    base: BaseState = Field(description="The shared base model.")
    capacity: Capacity = Field(description="What the trainer has room for.")
    jobs: list[JobReport] = Field(default_factory=list, description="Jobs of the desired set, and those still leaving.")
    plan: PlanState | None = Field(default=None, description="The plan that runs; null: idle.")
