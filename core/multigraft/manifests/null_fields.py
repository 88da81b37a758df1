"""Take a field that is null for one that was left out, as the API server does for all fields of our kinds.

The server prunes a null of a field without default and puts the default in the place of a null of a field with one
(apiextensions-apiserver, pkg/apiserver/schema/defaulting: PruneNonNullableNullsWithoutDefaults, Default). A null in
a list stays, and is refused.
"""

from __future__ import annotations

from typing import Any

from multigraft.api.rules import JsonObject


def drop_nulls(value: Any, schema: JsonObject) -> Any:
    """Copy `value` without the null fields that `schema` knows; an unknown field stays, to be reported."""
    if isinstance(value, list):
        return [drop_nulls(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    known = schema.get("properties", {})
    found = {}
    for name, item in value.items():
        inner = known.get(name, schema.get("additionalProperties"))
        if item is None and inner is not None:
            continue
        found[name] = drop_nulls(item, inner or {})
    return found
