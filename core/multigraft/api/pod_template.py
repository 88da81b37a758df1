"""Pod fields that a pool may set on its pods: a whitelist that reaches neither the host nor another namespace."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from multigraft.api.rules import JsonObject, Rule, exactly_one
from multigraft.api.schema import (
    ATOMIC,
    INT32_MAX,
    AnnotationKey,
    Choice,
    LabelKey,
    LabelValue,
    LocalObjectReference,
    ObjectName,
    Quantity,
    Spec,
    map_by,
)

EnvName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
VolumeName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
MountPath = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^/[^:]*$")]
AnnotationValue = Annotated[str, Field(max_length=4096)]


class TolerationOperator(StrEnum):
    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class PodMetadata(Spec):
    """Labels and annotations added to the trainer pods."""

    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=64, description="Labels to add.")
    annotations: dict[AnnotationKey, AnnotationValue] = Field(
        default_factory=dict, max_length=64, description="Annotations to add."
    )


def _key_or_exists(toleration: JsonObject) -> bool:
    return "key" in toleration or toleration["operator"] == "Exists"


def _exists_without_value(toleration: JsonObject) -> bool:
    return toleration["operator"] != "Exists" or not toleration.get("value")


class Toleration(Spec):
    """A node taint that the trainer pods put up with."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.key) || self.operator == 'Exists'",
            holds=_key_or_exists,
            message="must be Exists where key is left out",
            field="operator",
            reads=("key", "operator"),
        ),
        Rule(
            cel="self.operator != 'Exists' || !has(self.value) || self.value == ''",
            holds=_exists_without_value,
            message="must be left out where operator is Exists",
            field="value",
            reads=("operator", "value"),
        ),
    )

    key: LabelKey | None = Field(default=None, description="Taint key; left out: every taint.")
    operator: Choice[TolerationOperator] = Field(
        default=TolerationOperator.EQUAL, description="Equal compares `value`."
    )
    value: LabelValue | None = Field(default=None, description="Taint value.")
    effect: Choice[TaintEffect] | None = Field(default=None, description="Taint effect; left out: every effect.")
    toleration_seconds: int | None = Field(
        default=None,
        ge=0,
        le=INT32_MAX,
        description="Seconds that a NoExecute taint is put up with; left out: for ever.",
    )


class KeySelector(Spec):
    """One key of a Secret or ConfigMap of the pool's namespace."""

    name: ObjectName = Field(description="Name of the Secret or ConfigMap.")
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = Field(
        description="Its key."
    )


class EnvSource(Spec):
    """Where a value comes from. Exactly one of `secretKeyRef`, `configMapKeyRef`."""

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("secretKeyRef", "configMapKeyRef"),)

    secret_key_ref: KeySelector | None = Field(default=None, description="Key of a Secret.")
    config_map_key_ref: KeySelector | None = Field(default=None, description="Key of a ConfigMap.")


class EnvVar(Spec):
    """An environment variable of the trainer container. Exactly one of `value`, `valueFrom`."""

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("value", "valueFrom"),)

    name: EnvName = Field(description="Name of the variable.")
    value: Annotated[str, Field(max_length=4096)] | None = Field(
        default=None, description="Its value; secrets go in `valueFrom`."
    )
    value_from: EnvSource | None = Field(default=None, description="Where its value comes from.")


class ResourceRequirements(Spec):
    """Resources of the trainer container besides its accelerators."""

    requests: dict[LabelKey, Quantity] = Field(default_factory=dict, max_length=16, description="What is set aside.")
    limits: dict[LabelKey, Quantity] = Field(default_factory=dict, max_length=16, description="The most it may use.")


class ClaimSource(Spec):
    """A PersistentVolumeClaim of the pool's namespace."""

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim.")
    read_only: bool = Field(default=False, description="Mount it read-only.")


class SecretSource(Spec):
    """A Secret of the pool's namespace as files."""

    secret_name: ObjectName = Field(description="Name of the Secret.")


class EmptyDirSource(Spec):
    """Scratch space that goes with the pod."""

    size_limit: Quantity | None = Field(default=None, description="Most bytes that it may hold, as in `10Gi`.")


class Volume(Spec):
    """A volume of the trainer pods. Exactly one source; the host's folders are not among them."""

    rules: ClassVar[tuple[Rule, ...]] = (exactly_one("persistentVolumeClaim", "configMap", "secret", "emptyDir"),)

    name: VolumeName = Field(description="Name that `volumeMounts` use.")
    persistent_volume_claim: ClaimSource | None = Field(default=None, description="A PersistentVolumeClaim.")
    config_map: LocalObjectReference | None = Field(default=None, description="A ConfigMap as files.")
    secret: SecretSource | None = Field(default=None, description="A Secret as files.")
    empty_dir: EmptyDirSource | None = Field(default=None, description="Scratch space.")


class VolumeMount(Spec):
    """Where a volume appears in the trainer container."""

    name: VolumeName = Field(description="Name of the volume.")
    mount_path: MountPath = Field(description="Absolute path in the container.")
    sub_path: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        default=None, description="Path inside the volume; default: its root."
    )
    read_only: bool = Field(default=False, description="Mount it read-only.")


class PodTemplate(Spec):
    """Pod fields for the trainer pods. `multigraft run` makes no pods and passes them over."""

    metadata: PodMetadata = Field(default_factory=PodMetadata, description="Labels and annotations to add.")
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, max_length=32, description="Labels that a node must have."
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=32, json_schema_extra=ATOMIC, description="Node taints to put up with."
    )
    priority_class_name: ObjectName | None = Field(default=None, description="PriorityClass of the pods.")
    runtime_class_name: ObjectName | None = Field(default=None, description="RuntimeClass of the pods.")
    scheduler_name: ObjectName | None = Field(default=None, description="Scheduler that places the pods.")
    service_account_name: ObjectName | None = Field(default=None, description="ServiceAccount, for access to storage.")
    image_pull_secrets: list[LocalObjectReference] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=map_by("name"),
        description="Secrets for the image registry.",
    )
    env: list[EnvVar] = Field(
        default_factory=list, max_length=64, json_schema_extra=map_by("name"), description="Environment of the trainer."
    )
    resources: ResourceRequirements = Field(
        default_factory=ResourceRequirements, description="CPU, memory and the like; accelerators come from `gpu`."
    )
    volumes: list[Volume] = Field(
        default_factory=list, max_length=32, json_schema_extra=map_by("name"), description="Volumes of the pods."
    )
    volume_mounts: list[VolumeMount] = Field(
        default_factory=list, max_length=32, json_schema_extra=map_by("mountPath"), description="Where volumes appear."
    )
