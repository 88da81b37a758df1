"""Tell what kind of object a document is, before its fields are looked at."""

from __future__ import annotations

import difflib
from enum import Enum
from typing import Any

from multigraft.api.resources import RESOURCES, Resource
from multigraft.api.schema import API_VERSION, GROUP
from multigraft.manifests.document import Fault
from multigraft.manifests.wording import describe_got

_BY_KIND = {resource.kind: resource for resource in RESOURCES}
_KNOWN = ", ".join(_BY_KIND)


class Other(Enum):
    """Objects that are not ours."""

    CONFIG_MAP = "ConfigMap"
    FOREIGN = "foreign"  # another kind of Kubernetes
    NOT_AN_OBJECT = "not an object"  # no kind and no apiVersion


def kind_of(value: Any) -> Resource | Other | Fault:
    """Say which kind `value` is, or why that cannot be said."""
    if not isinstance(value, dict) or not {"kind", "apiVersion"} & value.keys():
        return Other.NOT_AN_OBJECT
    kind, api_version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or not kind:
        return Fault(("kind",), f"got {describe_got(kind, None)}, want a kind such as {_KNOWN}")
    if not isinstance(api_version, str) or not api_version:
        wanted = API_VERSION if kind in _BY_KIND else "a version such as " + API_VERSION
        return Fault(("apiVersion",), f"got {describe_got(api_version, None)}, want {wanted}")
    if kind in _BY_KIND and api_version == API_VERSION:
        return _BY_KIND[kind]
    if kind in _BY_KIND:
        return Fault(("apiVersion",), f'got text "{api_version}", want {API_VERSION}')
    if (kind, api_version) == ("ConfigMap", "v1"):
        return Other.CONFIG_MAP
    return _explain_foreign(kind, api_version)


def _explain_foreign(kind: str, api_version: str) -> Other | Fault:
    folded = {known.casefold(): known for known in _BY_KIND}
    close = difflib.get_close_matches(kind.casefold(), folded, n=1, cutoff=0.8)
    hint = f"; did you mean {folded[close[0]]}?" if close else ""
    if close or api_version.partition("/")[0] == GROUP:
        return Fault(("kind",), f'got text "{kind}", want one of {_KNOWN}{hint}')
    return Other.FOREIGN
