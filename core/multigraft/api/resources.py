"""How the kinds appear in `kubectl`: names, short names, category, printer columns, subresources."""

from __future__ import annotations

from dataclasses import dataclass

from multigraft.api.adapter_job import AdapterJob, AdapterJobSpec
from multigraft.api.adapter_job_status import AdapterJobStatus
from multigraft.api.base_model_pool import BaseModelPool, BaseModelPoolSpec
from multigraft.api.base_model_pool_status import BaseModelPoolStatus
from multigraft.api.conditions import Status
from multigraft.api.schema import Spec

CATEGORY = "multigraft"
"""`kubectl get multigraft` lists every kind."""


@dataclass(frozen=True)
class Column:
    """One printer column; `wide` ones appear with `-o wide` only."""

    name: str
    type: str
    json_path: str
    description: str
    wide: bool = False


@dataclass(frozen=True)
class ScalePaths:
    """Where `kubectl scale` and an autoscaler read and write."""

    spec_replicas: str
    status_replicas: str
    label_selector: str


@dataclass(frozen=True)
class Resource:
    """One kind as the API server serves it."""

    model: type[AdapterJob] | type[BaseModelPool]
    spec: type[Spec]
    status: type[Status]
    kind: str
    plural: str
    singular: str
    short_name: str
    columns: tuple[Column, ...]
    scale: ScalePaths | None = None


AGE = Column("Age", "date", ".metadata.creationTimestamp", "Time since creation.")

BASE_MODEL_POOL = Resource(
    model=BaseModelPool,
    spec=BaseModelPoolSpec,
    status=BaseModelPoolStatus,
    kind="BaseModelPool",
    plural="basemodelpools",
    singular="basemodelpool",
    short_name="bmp",
    columns=(
        Column("Model", "string", ".spec.baseModel.storageUri", "The frozen base model."),
        Column("GPU", "string", ".spec.gpu.accelerators[0].name", "Most preferred device kind."),
        Column("Ready", "string", ".status.ready", "Replicas that can train, of those wanted."),
        Column("Slots", "string", ".status.slots.display", "Slots that hold an adapter, of all."),
        Column("Pending", "integer", ".status.queue.pending", "Jobs that wait for a slot."),
        Column("Tokens/s", "integer", ".status.throughput.tokensPerSecond", "Real tokens per second.", wide=True),
        Column("Why", "string", '.status.conditions[?(@.type=="Ready")].reason', "Reason of Ready.", wide=True),
        AGE,
    ),
    scale=ScalePaths(".spec.replicas", ".status.replicas", ".status.selector"),
)

ADAPTER_JOB = Resource(
    model=AdapterJob,
    spec=AdapterJobSpec,
    status=AdapterJobStatus,
    kind="AdapterJob",
    plural="adapterjobs",
    singular="adapterjob",
    short_name="aj",
    columns=(
        Column("State", "string", ".status.phase", "Summary of the conditions."),
        Column("Reason", "string", ".status.reason", "Why it is in that state."),
        Column("Pool", "string", ".spec.poolRef.name", "The pool that trains it."),
        Column("Pod", "string", ".status.assignment.pod", "Trainer pod that holds its slot.", wide=True),
        Column("Step", "string", ".status.progress.display", "Optimizer steps taken, of those planned."),
        Column("Loss", "string", '.status.metrics[?(@.name=="loss")].value', "Latest training loss.", wide=True),
        Column("Priority", "integer", ".spec.priority", "Higher runs first.", wide=True),
        AGE,
    ),
)

RESOURCES = (BASE_MODEL_POOL, ADAPTER_JOB)
