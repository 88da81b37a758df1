"""Pieces shared by all kinds: camelCase models, decimal strings, storage URIs, references, object metadata.

Real numbers are decimal strings ("2e-4"), as Kubernetes' API conventions ask: no float in a spec. Whatever reads
such a field calls `parse_decimal`. Patterns are written for both engines that apply them, Rust's (pydantic) and
RE2 (the API server).
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Annotated, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError, to_jsonable_python

from multigraft.api.rules import DECIMAL_PATTERN as DECIMAL_PATTERN
from multigraft.api.rules import Rule, UpdateRule, find_broken, unique_items

GROUP = "multigraft.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

DNS_LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_KEY_PREFIX = r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
_KEY_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY_PATTERN = f"^{_KEY_PREFIX}{_KEY_NAME}$"
ANNOTATION_KEY_PATTERN = f"^{_KEY_PREFIX.replace('a-z', 'A-Za-z')}{_KEY_NAME}$"
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
MODULE_PATTERN = r"^[!-~]+$"
TIMESTAMP_PATTERN = (
    r"^[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]+)?(Z|[-+][0-2][0-9]:[0-5][0-9])$"
)
STORAGE_URI_PATTERN = r"^[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?$"
QUANTITY_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,9})?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"

MAX_ANNOTATION_BYTES = 256 << 10  # keys and values, as the API server counts them
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

EVERY_FIELD = ("*",)
"""For `Spec.fixed`: no field may be changed."""

SET: dict[str, JsonValue] = {"x-kubernetes-list-type": "set"}
ATOMIC: dict[str, JsonValue] = {"x-kubernetes-list-type": "atomic"}


def map_by(*keys: str) -> dict[str, JsonValue]:
    """Build the schema marks of a list whose items are told apart by `keys`."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


class Spec(BaseModel):
    """Base of every object of a manifest: camelCase keys, no unknown keys, no type coercion, immutable once read.

    Subclasses say their cross-field rules in `rules` and the fields that an update may not change in `fixed` (by
    attribute name); the same data becomes CEL in the CRD.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        strict=True,
        frozen=True,
        use_enum_values=False,
        allow_inf_nan=False,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    fixed: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _obey_rules(self) -> Self:
        rules = rules_of(type(self))
        if not rules:
            return self
        obj = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        details = [
            InitErrorDetails(
                type=PydanticCustomError("rule", "{text}", {"text": rule.explain(obj)}),
                loc=(rule.field,) if rule.field else (),
                input=obj.get(rule.field, obj),
            )
            for rule in find_broken(rules, obj)
        ]
        if details:
            raise ValidationError.from_exception_data(type(self).__name__, details)
        return self


def write_default(value: object) -> JsonValue:
    """Give the JSON of a default, whole: the API server checks it before it fills in deeper ones.

    None stands for no default; so do an empty list and an object without any value.
    """
    json: JsonValue = to_jsonable_python(value, by_alias=True, exclude_none=True)
    return _drop_empty(json)


def _drop_empty(json: JsonValue) -> JsonValue:
    if isinstance(json, list):
        return [_drop_empty(item) for item in json] or None
    if isinstance(json, dict):
        kept = {key: _drop_empty(value) for key, value in json.items()}
        return {key: value for key, value in kept.items() if value is not None} or None
    return json


@cache
def rules_of(model: type[Spec]) -> tuple[Rule, ...]:
    """All rules on one object of `model`: its own and those of its list types."""
    found = list(model.rules)
    for name, info in model.model_fields.items():
        marks = info.json_schema_extra
        if isinstance(marks, dict) and marks.get("x-kubernetes-list-type") in {"set", "map"}:
            keys = marks.get("x-kubernetes-list-map-keys", [])
            found.append(
                unique_items(info.alias or name, tuple(str(key) for key in keys) if isinstance(keys, list) else ())
            )
    return tuple(found)


@cache
def update_rules_of(model: type[Spec]) -> tuple[UpdateRule, ...]:
    """The fields of `model` that an update may not change."""
    rules = []
    for name in model.model_fields if model.fixed == EVERY_FIELD else model.fixed:
        info = model.model_fields[name]
        marks = info.json_schema_extra
        is_set = isinstance(marks, dict) and marks.get("x-kubernetes-list-type") == "set"
        default = info.get_default(call_default_factory=True, validated_data={})
        optional = not info.is_required() and write_default(default) is None
        rules.append(UpdateRule(info.alias or name, optional=optional, is_set=is_set))
    return tuple(rules)


Value = TypeVar("Value")
Choice = Annotated[Value, Field(strict=False)]
"""An enum that is written as its value, a string (strict mode would want the Python member)."""

DecimalString = Annotated[str, Field(pattern=DECIMAL_PATTERN, max_length=32)]
ObjectName = Annotated[str, Field(pattern=DNS_SUBDOMAIN_PATTERN, min_length=1, max_length=253)]
StorageUri = Annotated[str, Field(min_length=1, max_length=1024, pattern=STORAGE_URI_PATTERN)]
ModulePattern = Annotated[str, Field(min_length=1, max_length=512, pattern=MODULE_PATTERN)]
"""A module name, suffix or regular expression: printable ASCII without blanks."""


def _check_quantity(value: object, check: ValidatorFunctionWrapHandler) -> object:
    try:
        return check(value)
    except ValidationError as error:  # one error in place of one for each branch of the union
        raise PydanticCustomError("quantity", "want a quantity") from error


Quantity = Annotated[
    Annotated[int, Field(ge=0, le=INT64_MAX)] | Annotated[str, Field(pattern=QUANTITY_PATTERN, max_length=32)],
    WrapValidator(_check_quantity),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
LabelKey = Annotated[str, Field(pattern=LABEL_KEY_PATTERN, min_length=1, max_length=317)]
AnnotationKey = Annotated[str, Field(pattern=ANNOTATION_KEY_PATTERN, min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE_PATTERN, max_length=63)]


def parse_decimal(text: str) -> Decimal:
    """Parse a decimal string that matched `DECIMAL_PATTERN`; the value is finite and not negative."""
    return Decimal(text)


class LocalObjectReference(Spec):
    """Names an object in the same namespace."""

    name: ObjectName = Field(description="Name of the object, in the namespace of this resource.")


class KeyReference(Spec):
    """Names one key of a ConfigMap in the same namespace."""

    name: ObjectName = Field(description="Name of the ConfigMap, in the namespace of this resource.")
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = Field(
        description="Key of the ConfigMap that holds the file."
    )


class ObjectMeta(BaseModel):
    """Kubernetes' ObjectMeta; what the API server writes is carried along unread."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True, strict=True)

    name: ObjectName
    namespace: str = Field(default="default", pattern=DNS_LABEL_PATTERN, max_length=63)
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    annotations: dict[AnnotationKey, str] = Field(default_factory=dict)
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: Annotated[str, Field(pattern=TIMESTAMP_PATTERN)] | None = None
    deletion_timestamp: Annotated[str, Field(pattern=TIMESTAMP_PATTERN)] | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: list[str] = Field(default_factory=list)
    owner_references: list[JsonValue] = Field(default_factory=list)
    managed_fields: list[JsonValue] = Field(default_factory=list)
    self_link: str | None = None

    @model_validator(mode="after")
    def _limit_annotations(self) -> Self:
        num_bytes = sum(len(text.encode()) for pair in self.annotations.items() for text in pair)
        if num_bytes > MAX_ANNOTATION_BYTES:
            text = f"annotations of {num_bytes} bytes in all, want at most {MAX_ANNOTATION_BYTES}"
            raise PydanticCustomError("rule", "{text}", {"text": text})
        return self
