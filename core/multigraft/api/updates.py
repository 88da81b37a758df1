"""Say which changes of a spec are refused: the Python side of the transition rules in the CRDs."""

from __future__ import annotations

from collections.abc import Iterator

from multigraft.api.schema import Spec, update_rules_of


def find_forbidden_changes(old: Spec, new: Spec, path: str = "spec") -> Iterator[tuple[str, str]]:
    """Yield (field, message) of everything in `new` that may not differ from `old`."""
    old_json, new_json = (spec.model_dump(mode="json", by_alias=True, exclude_none=True) for spec in (old, new))
    for rule in update_rules_of(type(new)):
        if not rule.holds(new_json, old_json):
            yield f"{path}.{rule.field}", rule.message
    for name, info in type(new).model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, Spec) and isinstance(after, Spec):
            yield from find_forbidden_changes(before, after, f"{path}.{info.alias}")
