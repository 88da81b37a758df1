"""AdapterJob (`aj`): one LoRA adapter to train on a shared base model.

LoRA keys are PEFT's and training keys are Hugging Face's, in camelCase, so that a spec reads like a `LoraConfig`
plus `TrainingArguments`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import Field

from multigraft.api.adapter_job_status import AdapterJobStatus
from multigraft.api.label_selector import LabelSelector
from multigraft.api.rules import (
    Rule,
    at_most_field,
    decimal_in_range,
    exactly_one,
    must_be_empty,
    names_or_one_expression,
    only_alone,
    plain_uri,
)
from multigraft.api.schema import (
    EVERY_FIELD,
    INT32_MAX,
    INT64_MAX,
    SET,
    Choice,
    DecimalString,
    KeyReference,
    LocalObjectReference,
    ModulePattern,
    ObjectMeta,
    Spec,
    StorageUri,
)


class DatasetFormat(StrEnum):
    CONVERSATIONAL = "Conversational"
    PROMPT_COMPLETION = "PromptCompletion"
    TEXT = "Text"


class BadRowPolicy(StrEnum):
    FAIL = "Fail"
    SKIP = "Skip"


class LongSamplePolicy(StrEnum):
    TRUNCATE = "Truncate"
    SKIP = "Skip"
    FAIL = "Fail"


class LrSchedulerType(StrEnum):
    LINEAR = "Linear"
    COSINE = "Cosine"
    CONSTANT = "Constant"
    CONSTANT_WITH_WARMUP = "ConstantWithWarmup"


class Dataset(Spec):
    """Where the rows come from and how they are read. Exactly one of `storageUri`, `configMapRef`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one("storageUri", "configMapRef"),
        plain_uri("storageUri"),
        plain_uri("evalStorageUri"),
    )
    fixed: ClassVar[tuple[str, ...]] = EVERY_FIELD

    storage_uri: StorageUri | None = Field(
        default=None,
        description="File of rows: JSON lines (.jsonl, .json, optionally .gz) or Parquet (.parquet). A path without "
        "scheme is relative to the pool's storage root (in `multigraft run DIR`: to DIR).",
    )
    config_map_ref: KeyReference | None = Field(
        default=None, description="Key of a ConfigMap that holds the rows as JSON lines."
    )
    format: Choice[DatasetFormat] = Field(
        default=DatasetFormat.CONVERSATIONAL,
        description="Conversational: rows with `messages` (and `tools`). PromptCompletion: rows with `prompt` and "
        "`completion`. Text: rows with `text`, every token supervised.",
    )
    bad_row_policy: Choice[BadRowPolicy] = Field(
        default=BadRowPolicy.FAIL,
        description="What happens when a row cannot be used: Fail the job, or Skip the row and count it.",
    )
    long_sample_policy: Choice[LongSamplePolicy] = Field(
        default=LongSamplePolicy.TRUNCATE,
        description="What happens to a sample of more than `maxSeqLength` tokens: Truncate its end, Skip the row and "
        "count it, or Fail the job.",
    )
    eval_storage_uri: StorageUri | None = Field(
        default=None,
        description="File of held-out rows in the same format; their loss is reported before and after training.",
    )
    secret_ref: LocalObjectReference | None = Field(
        default=None,
        description="Secret with the storage credentials, in the namespace of the job. Trainer pods refuse it so far: "
        "their credentials are the pool's, from its `template`.",
    )


class Lora(Spec):
    """Shape of the adapter, with PEFT's names."""

    rules: ClassVar[tuple[Rule, ...]] = (
        decimal_in_range("loraAlpha", above=0),
        decimal_in_range("loraDropout", at_least=0, below=1),
        only_alone("targetModules", "all-linear"),
        names_or_one_expression("targetModules"),
        must_be_empty(
            "modulesToSave", "fully trained modules cannot share a frozen base, and servers refuse such adapters"
        ),
    )
    fixed: ClassVar[tuple[str, ...]] = EVERY_FIELD

    r: int = Field(default=8, ge=1, le=512, description="LoRA rank. At most the pool's `slots.maxRank`.")
    lora_alpha: DecimalString = Field(
        default="16",
        description="LoRA alpha, above 0; the update is scaled by alpha / r (alpha / sqrt(r) with rsLoRA).",
    )
    lora_dropout: DecimalString = Field(
        default="0", description="Dropout probability on the input of the low-rank path, 0 <= p < 1."
    )
    use_rslora: bool = Field(default=False, description="Scale the update by alpha / sqrt(r) instead of alpha / r.")
    target_modules: list[ModulePattern] = Field(
        default=["all-linear"],
        min_length=1,
        max_length=64,
        json_schema_extra=SET,
        description="Linear layers to adapt: module name suffixes (`q_proj`), full names, one regular expression on "
        "full names, or `all-linear` for every linear layer except the output head. An entry without a match fails the "
        "job.",
    )
    modules_to_save: list[ModulePattern] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra=SET,
        description="Must stay empty: fully trained modules cannot share a frozen base, and servers refuse such "
        "adapters.",
    )
    bias: Literal["None"] = Field(default="None", description="Only `None`: the base model is shared and frozen.")


class Training(Spec):
    """How the adapter is trained, with Hugging Face's names. Exactly one of `maxSteps`, `numTrainEpochs`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one("maxSteps", "numTrainEpochs"),
        at_most_field("warmupSteps", "maxSteps"),
        decimal_in_range("learningRate", above=0),
        decimal_in_range("weightDecay", at_least=0, at_most=1),
        decimal_in_range("adamBeta1", at_least=0, below=1),
        decimal_in_range("adamBeta2", at_least=0, below=1),
        decimal_in_range("adamEpsilon", above=0),
    )
    fixed: ClassVar[tuple[str, ...]] = EVERY_FIELD

    max_steps: int | None = Field(default=None, ge=1, le=INT32_MAX, description="Optimizer steps to take.")
    num_train_epochs: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Passes over the dataset; the last batch of an epoch may be smaller.",
    )
    global_batch_size: int = Field(
        default=8,
        ge=1,
        le=65_536,
        description="Samples per optimizer step of this adapter, over all microbatches and replicas.",
    )
    learning_rate: DecimalString = Field(default="2e-4", description="Peak learning rate, above 0.")
    lr_scheduler_type: Choice[LrSchedulerType] = Field(
        default=LrSchedulerType.LINEAR, description="Learning-rate schedule over this job's own optimizer steps."
    )
    warmup_steps: int = Field(
        default=0, ge=0, le=INT32_MAX, description="Optimizer steps of linear warm-up; at most `maxSteps`."
    )
    optim: Literal["AdamW"] = Field(default="AdamW", description="Optimizer; its state is fp32 and this job's own.")
    weight_decay: DecimalString = Field(default="0", description="Decoupled weight decay of AdamW, 0 <= x <= 1.")
    adam_beta1: DecimalString = Field(default="0.9", description="AdamW beta1, 0 <= x < 1.")
    adam_beta2: DecimalString = Field(default="0.999", description="AdamW beta2, 0 <= x < 1.")
    adam_epsilon: DecimalString = Field(default="1e-8", description="AdamW epsilon, above 0.")
    max_grad_norm: DecimalString = Field(
        default="1.0", description="Clip this adapter's gradient to this L2 norm; 0 turns clipping off."
    )
    max_seq_length: int = Field(
        default=2048, ge=8, le=1_048_576, description="Longest sample in tokens; see `dataset.longSamplePolicy`."
    )
    max_nonfinite_steps: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="Steps in a row with a non-finite loss or gradient that are skipped before the job fails.",
    )
    seed: int = Field(
        default=42, ge=0, le=INT64_MAX, description="Seed of this adapter's initial weights, sample order and dropout."
    )


class ResumeFrom(Spec):
    """A PEFT adapter to start from (weights only; a job's own checkpoints are resumed without this field)."""

    rules: ClassVar[tuple[Rule, ...]] = (plain_uri("storageUri"),)

    storage_uri: StorageUri = Field(description="Folder with adapter_config.json and adapter_model.safetensors.")


class Output(Spec):
    """Where the finished adapter goes."""

    rules: ClassVar[tuple[Rule, ...]] = (plain_uri("storageUri"),)

    storage_uri: StorageUri | None = Field(
        default=None,
        description="Folder for the PEFT adapter. A path without scheme is relative to the pool's output root (in "
        "`multigraft run`: to --out). Default: `adapters/<namespace>/<name>`.",
    )


class AdapterJobSpec(Spec):
    """What to train, on which pool, and where the adapter goes."""

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("poolRef", "poolSelector"),)
    fixed: ClassVar[tuple[str, ...]] = ("pool_ref", "pool_selector", "output", "resume_from")

    pool_ref: LocalObjectReference | None = Field(
        default=None, description="The BaseModelPool that trains this adapter."
    )
    pool_selector: LabelSelector | None = Field(
        default=None,
        description="Labels of the pools that may train this adapter; the planner takes the one with room. An empty "
        "selector takes any pool of the namespace.",
    )
    dataset: Dataset = Field(description="Training rows.")
    lora: Lora = Field(default_factory=Lora, description="Shape of the adapter.")
    training: Training = Field(description="Optimizer, schedule and batch.")
    output: Output = Field(default_factory=Output, description="Where the adapter is written.")
    resume_from: ResumeFrom | None = Field(default=None, description="Adapter to start from instead of a fresh one.")
    priority: int = Field(
        default=0,
        ge=-1_000_000,
        le=1_000_000,
        description="Higher runs first; may preempt lower ones if the pool allows.",
    )
    suspend: bool = Field(
        default=False, description="True keeps the job from running; a running one is checkpointed first."
    )
    active_deadline_seconds: int | None = Field(
        default=None, ge=1, le=INT32_MAX, description="Seconds from admission after which the job fails."
    )
    backoff_limit: int = Field(default=3, ge=0, le=100, description="Retries after a retryable failure.")
    ttl_seconds_after_finished: int | None = Field(
        default=None, ge=0, le=INT32_MAX, description="Seconds after which a finished job object is deleted."
    )


class AdapterJob(Spec):
    """One LoRA adapter to train on a shared, frozen base model."""

    api_version: Literal["multigraft.dev/v1alpha1"]
    kind: Literal["AdapterJob"]
    metadata: ObjectMeta
    spec: AdapterJobSpec
    status: AdapterJobStatus | None = None

    @property
    def key(self) -> str:
        """`namespace/name`, unique in a cluster; the name by which plans, states and results know the job."""
        return f"{self.metadata.namespace}/{self.metadata.name}"
