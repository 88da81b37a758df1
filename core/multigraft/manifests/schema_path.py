"""Find the part of a structural schema that a field path leads to."""

from __future__ import annotations

from multigraft.api.rules import JsonObject
from multigraft.manifests.document import Path


def schema_at(schema: JsonObject, path: Path) -> JsonObject:
    """Give the schema of the value at `path`; empty where the schema says nothing."""
    for part in path:
        inner = schema.get("items") if isinstance(part, int) else schema.get("properties", {}).get(part)
        schema = inner or schema.get("additionalProperties") or {}
    return schema
