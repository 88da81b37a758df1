"""Say in words what a field wants and what it got, from the structural schema of the kinds."""

from __future__ import annotations

import json
import re
from typing import Any

from multigraft.api import schema as api
from multigraft.api.rules import JsonObject, Rule
from multigraft.manifests.scalars import resolve_plain

_LONGEST_SHOWN = 60

_PATTERN_WORDS = {
    api.DNS_SUBDOMAIN_PATTERN: 'a name of lower-case letters, digits, "-" and "." between letters or digits',
    api.DNS_LABEL_PATTERN: 'a name of lower-case letters, digits and "-" between letters or digits',
    api.LABEL_KEY_PATTERN: "a label key such as example.com/team",
    api.ANNOTATION_KEY_PATTERN: "an annotation key such as example.com/note",
    api.LABEL_VALUE_PATTERN: 'a label value of letters, digits, "-", "_" and "."',
    api.STORAGE_URI_PATTERN: "a path or URI without control characters, with blanks only inside",
    api.MODULE_PATTERN: "printable ASCII without blanks",
}


def describe_wanted(schema: JsonObject) -> str:
    """Say what a field with this schema takes."""
    if "enum" in schema:
        options = schema["enum"]
        return f"only {options[0]}" if len(options) == 1 else f"one of {', '.join(options)}"
    if words := _words_beside_number(schema):
        return f"a whole number{_range_words(schema, 'minimum', 'maximum', 'from {} to {}')} or {' or '.join(words)}"
    if "x-kubernetes-int-or-string" in schema:
        return 'a whole number or a quoted quantity such as "500m" or "4Gi"'
    match schema.get("type"):
        case "integer":
            limit = {"maximum": api.INT64_MAX} if schema.get("format") == "int64" else {}
            return "a whole number" + _range_words({**limit, **schema}, "minimum", "maximum", "from {} to {}")
        case "boolean":
            return "true or false"
        case "array":
            return "a list" + _range_words(schema, "minItems", "maxItems", "of {} to {} items")
        case "object":
            names = ", ".join(schema.get("properties", {}))
            return f"an object with {names}" if names else "an object of names and values"
        case _:
            return _describe_text(schema)


def _describe_text(schema: JsonObject) -> str:
    pattern = schema.get("pattern")
    if pattern:
        return f"{describe_pattern(pattern)}, of at most {schema.get('maxLength')} characters"
    return "text" + _range_words(schema, "minLength", "maxLength", "of {} to {} characters")


def describe_pattern(pattern: str) -> str:
    """Say what text matches a pattern of ours."""
    return _PATTERN_WORDS.get(pattern, f"text that matches {pattern}")


def _range_words(schema: JsonObject, low: str, high: str, words: str) -> str:
    if high not in schema:
        return f" of at least {schema[low]}" if low in schema else ""
    return " " + words.format(schema.get(low, 0), schema[high])


def describe_got(value: Any, written: str | None, *, show_text: bool = True) -> str:
    """Say what was given; `written` is its source if it was plain. Text is left out where it may be a secret."""
    match value:
        case None:
            return "null"
        case bool():
            kind, plain = "boolean", str(value).lower()
        case int() | float():
            kind, plain = "number", repr(value)
        case str():
            return f"text {_shorten(value)}" if show_text else "text"
        case list():
            return f"a list of {len(value)} items"
        case _:
            return "an object"
    return f"{kind} {plain}" + (f" (written {written})" if written not in {None, plain} else "")


def _shorten(text: str) -> str:
    if len(text) <= _LONGEST_SHOWN:
        return json.dumps(text, ensure_ascii=True)
    return f"{json.dumps(text[:_LONGEST_SHOWN], ensure_ascii=True)}... of {len(text)} characters"


def suggest_value(value: Any, written: str | None, schema: JsonObject) -> str:
    """Suggest how to write the value, for the usual slips; empty if there is nothing to suggest."""
    wants_text = schema.get("type") == "string" and "enum" not in schema
    if wants_text and isinstance(value, bool | int | float):
        text = written if written is not None else json.dumps(value)
        return f'; quote it: "{text}"' if _matches(text, schema) else ""
    if not isinstance(value, str):
        return ""
    words = _words_beside_number(schema)
    if option := _find_option(value, [*schema.get("enum", []), *words]):
        return f"; write {option}"
    if value.casefold() in {"none", "null", "nil", ""} and "default" in schema:
        return "; for the default leave the field out"
    if (schema.get("type") in {"integer", "boolean"} or words) and not isinstance(resolve_plain(value), str | None):
        return f"; write {value} without quotes"
    return ""


def describe_decimal(value: Any, written: str | None, schema: JsonObject, rules: list[Rule]) -> str:
    """Say what a decimal string must be, with the given number as the example where it would do."""
    limits = "".join(" " + rule.limits for rule in rules)
    written_ways = [written, repr(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []
    for text in written_ways:
        if text and _matches(text, schema) and all(rule.holds({rule.field: text}) for rule in rules):
            return f'a quoted decimal string{limits} such as "{text}"'
    return f'a quoted decimal string{limits} such as "{schema.get("default", "0.1")}"'


def _words_beside_number(schema: JsonObject) -> list[str]:
    """Give the words that a number or word field takes; none for other fields, quantities among them."""
    is_choice = re.fullmatch(r"\^\(([A-Za-z|]+)\)\$", schema.get("pattern", ""))
    return is_choice[1].split("|") if is_choice else []


def _matches(text: str, schema: JsonObject) -> bool:
    return re.search(schema.get("pattern", ""), text) is not None


def _find_option(value: str, options: list[str]) -> str | None:
    """Find the option that differs in case, blanks, dashes and underscores only."""
    plain = value.casefold().replace("_", "").replace("-", "").replace(" ", "")
    return next((option for option in options if option.casefold() == plain), None)
