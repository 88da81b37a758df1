"""Write pydantic models as Kubernetes' structural schemas.

A structural schema is JSON schema without references, `null` unions, titles and `additionalProperties: false`; the
cross-field rules of `Spec` become `x-kubernetes-validations`.
"""

from __future__ import annotations

import json
import re

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from multigraft.api.rules import JsonObject, Rule, UpdateRule
from multigraft.api.schema import INT32_MAX, INT64_MAX, Spec, rules_of, update_rules_of, write_default


def build_schema(model: type[BaseModel]) -> JsonObject:
    """Build the structural schema of `model`."""
    schema = model.model_json_schema(by_alias=True, schema_generator=_StructuralSchema)
    return _inline(schema, schema.pop("$defs", {}))


_KEY_ORDER = (
    "type",
    "format",
    "x-kubernetes-int-or-string",
    "description",
    "default",
    "enum",
    "minimum",
    "maximum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "anyOf",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
    "properties",
    "items",
    "additionalProperties",
)
"""Every key that a schema of ours may have."""


class _StructuralSchema(GenerateJsonSchema):
    """Pydantic's generator with the parts that structural schemas write differently."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        found.pop("title", None)
        found.pop("additionalProperties", None)
        model = schema["cls"]
        if issubclass(model, Spec):
            rules = [*map(_rule, rules_of(model)), *map(_update_rule, update_rules_of(model))]
            if rules := [rule for rule in rules if rule["rule"]]:
                found["x-kubernetes-validations"] = rules
        return found

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        found = self.generate_inner(schema["schema"])
        value = schema["default_factory"]() if "default_factory" in schema else schema.get("default")  # type: ignore[call-arg]
        written = write_default(value)
        return found if written is None else {**found, "default": written}

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        return {"type": "string", "enum": [member.value for member in schema["members"]]}

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        return {"type": "string", "enum": list(schema["expected"])}

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        found = super().int_schema(schema)
        largest = found.get("maximum", INT64_MAX)
        found["format"] = "int32" if largest <= INT32_MAX else "int64"
        if largest == INT64_MAX:
            found.pop("maximum", None)  # would be rounded to a double; the format says it
        return found

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        keys = self.generate_inner(schema["keys_schema"])
        pattern, longest = json.dumps(keys["pattern"]), keys["maxLength"]
        return {
            "type": "object",
            "maxProperties": schema.get("max_length"),
            "additionalProperties": self.generate_inner(schema["values_schema"]),
            "x-kubernetes-validations": [
                {
                    "rule": f"self.all(key, size(key) <= {longest} && key.matches({pattern}))",
                    "message": f"want keys `name` or `prefix/name`, as of labels, of at most {longest} characters",
                    "reason": "FieldValueInvalid",
                }
            ],
        }

    def union_schema(self, schema: core_schema.UnionSchema) -> JsonSchemaValue:
        choices = [self.generate_inner(choice) for choice in schema["choices"] if not isinstance(choice, tuple)]
        branches = [_pattern_for_words(choice) for choice in choices]
        merged = {key: value for branch in branches for key, value in branch.items() if key not in {"type", "format"}}
        return {"anyOf": [{"type": branch["type"]} for branch in branches], **merged}


def _pattern_for_words(branch: JsonSchemaValue) -> JsonSchemaValue:
    """Say the words of an enum as a pattern: beside a number an enum would refuse every number."""
    if "enum" not in branch:
        return branch
    return {"type": "string", "pattern": f"^({'|'.join(branch['enum'])})$"}


def _inline(schema: JsonObject, definitions: JsonObject) -> JsonObject:
    """Put definitions in the place of references, drop titles, and order the keys for reading."""
    if reference := schema.get("$ref"):
        own = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**definitions[reference.rsplit("/", 1)[-1]], **own}
    found: JsonObject = {}
    for key in sorted(schema.keys() - {"title"}, key=_KEY_ORDER.index):
        value = schema[key]
        if value is None:
            continue
        if key == "properties":
            found[key] = {name: _inline(inner, definitions) for name, inner in value.items()}
        elif key in {"items", "additionalProperties"}:
            found[key] = _inline(value, definitions)
        else:
            found[key] = value
    return found


def _rule(rule: Rule) -> JsonObject:
    found = {"rule": rule.cel, "message": rule.message.partition(", got ")[0]}
    if rule.limits:  # a decimal string has a greatest length, so that CEL's budget allows to show it
        found["messageExpression"] = _message_expression(rule.message)
    if rule.field:
        found["fieldPath"] = f".{rule.field}"
    found["reason"] = "FieldValueInvalid"
    return found


def _update_rule(rule: UpdateRule) -> JsonObject:
    return {"rule": rule.cel, "message": rule.message, "fieldPath": f".{rule.field}", "reason": "FieldValueForbidden"}


def _message_expression(message: str) -> str:
    """Turn `got {x}, want y` into the CEL `"got " + self.x + ", want y"`."""
    parts = re.split(r"\{(\w+)\}", message)
    texts = [json.dumps(part) if index % 2 == 0 else f"self.{part}" for index, part in enumerate(parts)]
    return " + ".join(text for text in texts if text != '""')
