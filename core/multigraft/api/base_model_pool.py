"""BaseModelPool (`bmp`): one frozen base model and the pods that share it among many adapters."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from multigraft.api.base_model_pool_status import BaseModelPoolStatus
from multigraft.api.pod_template import PodTemplate
from multigraft.api.rules import Rule, expressions_compile, only_alone, plain_uri, plain_uris
from multigraft.api.schema import (
    INT32_MAX,
    SET,
    Choice,
    LabelKey,
    LabelValue,
    LocalObjectReference,
    ModulePattern,
    ObjectMeta,
    Spec,
    StorageUri,
    map_by,
)


class Dtype(StrEnum):
    BF16 = "BF16"
    FP16 = "FP16"
    FP32 = "FP32"


class BaseModel(Spec):
    """The frozen model."""

    rules: ClassVar[tuple[Rule, ...]] = (plain_uri("storageUri"),)
    fixed: ClassVar[tuple[str, ...]] = ("storage_uri", "revision", "dtype", "quantization")

    storage_uri: StorageUri = Field(
        description="Hugging Face folder (a path without scheme is relative to the pool's storage root; in "
        "`multigraft run DIR`: to DIR) or hub name as `hf://owner/name`."
    )
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        default=None, description="Revision of a hub model. A digit-only revision must be quoted."
    )
    dtype: Choice[Dtype] = Field(default=Dtype.BF16, description="Dtype of the frozen weights and of compute.")
    quantization: Literal["None"] = Field(default="None", description="Quantization of the frozen weights.")
    secret_ref: LocalObjectReference | None = Field(
        default=None, description="Secret with the hub or storage credentials."
    )


class Accelerator(Spec):
    """One kind of device that the pool may use."""

    name: Literal["H100", "H200", "L40S", "A100", "CPU"] = Field(description="Device kind; CPU needs no GPU.")
    products: list[LabelValue] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=SET,
        description="Accepted values of the node label `productLabel`; default: the known product names of this kind.",
    )
    count: int = Field(default=1, ge=1, le=64, description="Devices per replica.")


class Gpu(Spec):
    """Devices, in order of preference."""

    accelerators: list[Accelerator] = Field(
        default=[Accelerator(name="H100")],
        min_length=1,
        max_length=8,
        json_schema_extra=map_by("name"),
        description="Device kinds, most preferred first.",
    )
    resource_name: LabelKey = Field(default="nvidia.com/gpu", description="Extended resource that pods request.")
    product_label: LabelKey = Field(default="nvidia.com/gpu.product", description="Node label that names the product.")


class Parallelism(Spec):
    """How one replica is spread over devices. Each is 1 with the Transformers backend."""

    tensor: int = Field(default=1, ge=1, le=1, description="Devices that share each layer.")
    pipeline: int = Field(default=1, ge=1, le=1, description="Stages that the layers are cut into.")
    data: int = Field(default=1, ge=1, le=1, description="Copies of the base inside one replica.")


class Slots(Spec):
    """Places for adapters on each replica."""

    rules: ClassVar[tuple[Rule, ...]] = (
        only_alone("targetModules", "all-linear"),
        expressions_compile("targetModules"),
    )

    max: int = Field(default=8, ge=1, le=256, description="Most adapters that train at once on one replica.")
    max_rank: int = Field(default=64, ge=1, le=512, description="Highest LoRA rank that a job may ask for.")
    target_modules: list[ModulePattern] = Field(
        default=["all-linear"],
        min_length=1,
        max_length=64,
        json_schema_extra=SET,
        description="Entries that a job's `lora.targetModules` may hold; `all-linear`: any.",
    )


AUTO: Literal["Auto"] = "Auto"


def _check_capacity(value: object, check: ValidatorFunctionWrapHandler) -> object:
    try:
        return check(value)
    except ValidationError as error:  # one error in place of one for each branch of the union
        raise PydanticCustomError("capacity", "want a number of tokens or Auto") from error


class Batching(Spec):
    """How samples are packed."""

    max_tokens_per_microbatch: Annotated[
        Annotated[int, Field(ge=16, le=1_048_576)] | Literal["Auto"],
        WrapValidator(_check_capacity),
        Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
    ] = Field(
        default=4096,
        description="Token capacity of one microbatch, over all adapters in it. Auto: the trainer measures at its "
        "start what fits with every slot in use at full rank, and keeps that number when it resumes.",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Recompute activations in backward: less memory, about one more forward of time."
    )

    @property
    def given_capacity(self) -> int | None:
        """Give the token capacity that the spec says; None: Auto, which only a trainer can tell."""
        given = self.max_tokens_per_microbatch
        return None if given == AUTO else given


class Scheduling(Spec):
    """How jobs are planned and placed."""

    solver_timeout_seconds: int = Field(
        default=5,
        ge=0,
        le=600,
        description="Wall-clock budget of a solver for one plan, beside training, which never waits for it; "
        "0: greedy only.",
    )
    horizon_global_batches: int = Field(
        default=16,
        ge=1,
        le=1024,
        description="Global batches in one plan, on average over its adapters: those with small ones or a higher "
        "priority get more. Fewer where 64 microbatches hold them. Jobs are checkpointed at plan boundaries.",
    )
    preemption: Literal["Never", "LowerPriority"] = Field(
        default="LowerPriority", description="Whether a job may take the slot of one with lower priority."
    )
    preempt_min_runtime_seconds: int = Field(
        default=600, ge=0, le=INT32_MAX, description="A job is not preempted before it has run this long."
    )


class Checkpoint(Spec):
    """When the pool's adapters are saved."""

    rules: ClassVar[tuple[Rule, ...]] = (plain_uri("storageUri"),)

    storage_uri: StorageUri | None = Field(
        default=None, description="Folder for checkpoints. Default: `checkpoints` under the output root."
    )
    interval_steps: int = Field(
        default=50, ge=1, le=INT32_MAX, description="Optimizer steps of any adapter between checkpoints."
    )
    keep_last: int = Field(default=2, ge=1, le=100, description="Good checkpoints kept per job.")


class Storage(Spec):
    """Which storage the pool's jobs may touch."""

    rules: ClassVar[tuple[Rule, ...]] = (plain_uris("allowedRoots"),)

    allowed_roots: list[StorageUri] = Field(
        default_factory=list,
        max_length=32,
        json_schema_extra=SET,
        description="URI prefixes below which jobs may read datasets and write adapters, besides the pool's own roots.",
    )


class BaseModelPoolSpec(Spec):
    """A frozen base model, its devices, its slots and its limits."""

    base_model: BaseModel = Field(description="The frozen model.")
    backend: Literal["Transformers"] = Field(default="Transformers", description="Training backend.")
    gpu: Gpu = Field(default_factory=Gpu, description="Devices of a replica.")
    parallelism: Parallelism = Field(default_factory=Parallelism, description="How a replica is spread over devices.")
    replicas: int = Field(default=1, ge=0, le=64, description="Trainer replicas, each with its own copy of the base.")
    slots: Slots = Field(default_factory=Slots, description="Places for adapters.")
    batching: Batching = Field(default_factory=Batching, description="How samples are packed.")
    scheduling: Scheduling = Field(default_factory=Scheduling, description="How jobs are planned.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="When adapters are saved.")
    storage: Storage = Field(default_factory=Storage, description="Which storage jobs may touch.")
    template: PodTemplate = Field(default_factory=PodTemplate, description="Pod fields for the trainer pods.")
    drain_timeout_seconds: int = Field(
        default=300, ge=0, le=86_400, description="Seconds that a leaving pod has to checkpoint its jobs."
    )
    deletion_policy: Literal["Drain", "Block", "Force"] = Field(
        default="Drain", description="What deleting the pool does while jobs run on it."
    )


class BaseModelPool(Spec):
    """One frozen base model and the pods that share it among many adapters."""

    api_version: Literal["multigraft.dev/v1alpha1"]
    kind: Literal["BaseModelPool"]
    metadata: ObjectMeta
    spec: BaseModelPoolSpec
    status: BaseModelPoolStatus | None = None

    @property
    def key(self) -> str:
        """`namespace/name`, unique in a cluster."""
        return f"{self.metadata.namespace}/{self.metadata.name}"
