"""Pieces shared by all kinds: camelCase models, decimal strings, storage URIs, references.

Real numbers are decimal strings ("2e-4"), as Kubernetes' API conventions ask: no float in a spec. Whatever reads
such a field calls `parse_decimal`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP = "multigraft.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

DECIMAL_PATTERN = r"^[0-9]{1,12}(\.[0-9]{1,12})?([eE][-+]?[0-9]{1,2})?$"
DNS_SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Spec(BaseModel):
    """Base of every object of a manifest: camelCase keys, no unknown keys, no type coercion, immutable once read."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        strict=True,
        frozen=True,
        use_enum_values=False,
        allow_inf_nan=False,
    )


DecimalString = Annotated[str, Field(pattern=DECIMAL_PATTERN, max_length=32)]
ObjectName = Annotated[str, Field(pattern=DNS_SUBDOMAIN_PATTERN, min_length=1, max_length=253)]
StorageUri = Annotated[str, Field(min_length=1, max_length=1024)]


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
    """The part of Kubernetes' ObjectMeta that a local run reads; other metadata keys are carried along unread."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: ObjectName
    namespace: str = Field(default="default", pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


JsonObject = dict[str, Any]
