"""Check one object against its kind and say everything that is wrong with it, in our own words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.resources import Resource
from multigraft.api.rules import DECIMAL_PATTERN, JsonObject, Rule, find_broken
from multigraft.api.schema import API_VERSION, ObjectMeta, Spec, rules_of, write_default
from multigraft.api.structural_schema import build_schema
from multigraft.manifests.document import Document, Fault, Path
from multigraft.manifests.null_fields import drop_nulls
from multigraft.manifests.schema_path import schema_at
from multigraft.manifests.unknown_field import explain_unknown_field
from multigraft.manifests.wording import (
    describe_decimal,
    describe_got,
    describe_pattern,
    describe_wanted,
    suggest_value,
)

Model = TypeVar("Model", bound=BaseModel)


@cache
def _root_schema(resource: Resource) -> JsonObject:
    return {
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "enum": [API_VERSION]},
            "kind": {"type": "string", "enum": [resource.kind]},
            "metadata": build_schema(ObjectMeta),
            "spec": build_schema(resource.spec),
        },
    }


def check_object(document: Document, resource: Resource) -> AdapterJob | BaseModelPool | tuple[Fault, ...]:
    """Give the object of `document`, or every fault of it."""
    spoken_of = {key: item for key, item in document.value.items() if key != "status"}
    return _check(document, spoken_of, resource.model, _root_schema(resource))


def check_metadata(document: Document) -> ObjectMeta | tuple[Fault, ...]:
    """Give the metadata of an object of any kind, or every fault of it."""
    root = {"type": "object", "properties": {"metadata": build_schema(ObjectMeta)}}
    checked = _check(document, {"metadata": document.value.get("metadata")}, _AnyObject, root)
    return checked.metadata if isinstance(checked, _AnyObject) else checked


class _AnyObject(BaseModel):
    metadata: ObjectMeta


def _check(document: Document, value: JsonObject, model: type[Model], root: JsonObject) -> Model | tuple[Fault, ...]:
    value = drop_nulls(value, root)
    if isinstance(value.get("metadata"), dict) and value["metadata"].get("namespace") == "":
        del value["metadata"]["namespace"]  # Kubernetes takes it for left out
    try:
        return model.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        faults = [_explain(detail, document, root, model) for detail in error.errors()]
    bad_paths = [fault.path for fault in faults]
    faults += _find_hidden_rule_faults(model, value, (), bad_paths)
    return tuple(dict.fromkeys(faults))


def _explain(detail: Any, document: Document, root: JsonObject, model: type[BaseModel]) -> Fault:
    path: Path = tuple(detail["loc"])
    kind = detail["type"]
    if kind == "rule":
        return Fault(path, detail["msg"])
    if path and path[-1] == "[key]":
        return Fault(path[:-1], f"got key {describe_got(path[-2], None)}, want {_describe_key(detail)}")
    if kind == "extra_forbidden":
        return Fault(path, explain_unknown_field(path, root))
    schema = schema_at(root, path)
    if kind == "missing":
        return Fault(path, f"missing, want {describe_wanted(schema)}")
    return Fault(path, _explain_value(detail["input"], document.written_at(path), schema, _limits_at(model, path)))


def _explain_value(value: Any, written: str | None, schema: JsonObject, limits: list[Rule]) -> str:
    is_scalar = schema.get("type") not in {"object", "array"}
    got = describe_got(value, written, show_text=is_scalar)
    if schema.get("pattern") == DECIMAL_PATTERN:
        wanted = describe_decimal(value, written, schema, limits)
        hint = suggest_value(value, written, schema) if isinstance(value, str) else ""  # the example has the number
        return f"got {got}, want {wanted}{hint}"
    return f"got {got}, want {describe_wanted(schema)}{suggest_value(value, written, schema)}"


def _limits_at(model: type[BaseModel], path: Path) -> list[Rule]:
    """Give the rules on the range of the decimal string at `path`."""
    for part in path[:-1]:
        model = dict(_nested_models(model)).get(str(part), model) if isinstance(part, str) else model
    return (
        [rule for rule in rules_of(model) if rule.limits and rule.field == path[-1]] if issubclass(model, Spec) else []
    )


def _describe_key(detail: Any) -> str:
    context = detail.get("ctx", {})
    if "pattern" in context:
        return describe_pattern(context["pattern"])
    return f"at most {context['max_length']} characters" if "max_length" in context else "text that is not empty"


def _find_hidden_rule_faults(model: type[BaseModel], value: Any, path: Path, bad_paths: list[Path]) -> Iterator[Fault]:
    """Yield the broken rules of objects whose own check ended at a malformed field."""
    if not isinstance(value, dict):
        return
    malformed = frozenset(str(bad[len(path)]) for bad in bad_paths if bad[: len(path)] == path and len(bad) > len(path))
    if not malformed:
        return
    if issubclass(model, Spec):
        obj = {**_defaults(model), **value}
        for rule in find_broken(rules_of(model), obj, malformed=malformed):
            yield Fault((*path, rule.field) if rule.field else path, rule.explain(obj))
    for name, inner in _nested_models(model):
        items = value.get(name)
        if isinstance(items, list):
            for index, item in enumerate(items):
                yield from _find_hidden_rule_faults(inner, item, (*path, name, index), bad_paths)
        else:
            yield from _find_hidden_rule_faults(inner, items, (*path, name), bad_paths)


@cache
def _defaults(model: type[Spec]) -> JsonObject:
    found = {}
    for name, info in model.model_fields.items():
        default = (
            None
            if info.is_required()
            else write_default(info.get_default(call_default_factory=True, validated_data={}))
        )
        if default is not None:
            found[info.alias or name] = default
    return found


@cache
def _nested_models(model: type[BaseModel]) -> tuple[tuple[str, type[BaseModel]], ...]:
    """Give (key, model) of the fields that hold an object, or a list of objects, of another model."""
    found = []
    for name, info in model.model_fields.items():
        annotations = [info.annotation]
        while annotations:
            annotation = annotations.pop()
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                found.append((info.alias or name, annotation))
            annotations.extend(get_args(annotation))
    return tuple(found)
