"""Cross-field rules, each defined once: the CEL that the API server runs and the Python that says the same.

A rule speaks about one object of a manifest in its JSON form (camelCase keys, defaults filled in, absent fields
absent), which is what CEL sees as `self`. Builders make both forms from one set of names and limits. A message may
end in `, got ...` with `{field}` for that field's value.
"""

from __future__ import annotations

import json
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

JsonObject = dict[str, Any]

# What leads out of a folder, in every spelling that some storage library takes for it. Searched for, by `re` and RE2.
CLIMBING_PATTERN = r"(?i)(^|/|%2f|%5c)(\.|%2e){2}(/|%2f|%5c|$)|\\"
MODULE_NAME_PATTERN = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
# Expressions that no engine compiles, as far as a pattern can tell: a leading repeat, a lone backslash at the end, a
# first bracket that is never closed or never opened.
_BROKEN_PATTERN = r"^[*+?]|(^|[^\\])(\\\\)*\\$|^([^\\\[]|\\.)*\[[^\]]*$|^([^\\\[(]|\\.)*\([^)]*$|^([^\\\[(]|\\.)*\)"
DECIMAL_PATTERN = r"^[0-9]{1,12}(\.[0-9]{1,12})?([eE][-+]?[0-9]{1,2})?$"


@dataclass(frozen=True)
class Rule:
    """One rule on one object."""

    cel: str  # empty where the structural schema itself says it (list types)
    holds: Callable[[JsonObject], bool]
    message: str
    field: str  # the field that is reported; empty: the object
    reads: tuple[str, ...]  # the fields that must be well-formed for `holds` to make sense
    limits: str = ""  # of a decimal string: `> 0 and < 1`

    def explain(self, obj: JsonObject) -> str:
        """Fill the values of `obj` into the message."""
        text = self.message
        for name in self.reads:
            text = text.replace("{" + name + "}", str(obj.get(name)))
        return text


@dataclass(frozen=True)
class UpdateRule:
    """One field that an update may not change."""

    field: str
    optional: bool  # the field may be absent
    is_set: bool  # a list without order

    @property
    def cel(self) -> str:
        """The rule for the API server."""
        same = f"self.{self.field} == oldSelf.{self.field}"
        if not self.optional:
            return same
        if self.is_set:  # no list and an empty one are the same
            now, before = (f"(has({name}.{self.field}) ? {name}.{self.field} : [])" for name in ("self", "oldSelf"))
            return f"{now} == {before}"
        both = f"has(self.{self.field}) == has(oldSelf.{self.field})"
        return f"{both} && (!has(self.{self.field}) || {same})"

    @property
    def message(self) -> str:
        """What the user is told."""
        return "cannot be changed after creation; make a new object"

    def holds(self, new: JsonObject, old: JsonObject) -> bool:
        """Say whether the field is the same in both."""
        got, want = new.get(self.field), old.get(self.field)
        if self.is_set and isinstance(got, list) and isinstance(want, list):
            return sorted(got) == sorted(want)
        return bool(got == want)


def find_broken(rules: Iterable[Rule], obj: JsonObject, *, malformed: frozenset[str] = frozenset()) -> Iterator[Rule]:
    """Yield the rules that `obj` breaks, passing over those that read a malformed field."""
    for rule in rules:
        if malformed.isdisjoint(rule.reads) and not rule.holds(obj):
            yield rule


def exactly_one(*fields: str) -> Rule:
    """Build the rule that exactly one of `fields` is given."""
    names = ", ".join(fields)
    count = " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in fields)
    return Rule(
        cel=f"{count} == 1",
        holds=lambda obj: sum(name in obj for name in fields) == 1,
        message=f"exactly one of {names} must be given",
        field="",
        reads=fields,
    )


_OBEYS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def decimal_in_range(
    field: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> Rule:
    """Build the rule that a decimal string, read as a double, lies within the limits."""
    limits = {">": above, ">=": at_least, "<": below, "<=": at_most}
    given = [(sign, float(limit)) for sign, limit in limits.items() if limit is not None]
    wanted = " and ".join(f"{sign} {limit:g}" for sign, limit in given)
    is_decimal = f"self.{field}.matches({json.dumps(DECIMAL_PATTERN)})"  # else `double` ends in an error of its own
    return Rule(
        cel=" && ".join([is_decimal, *(f"double(self.{field}) {sign} {limit!r}" for sign, limit in given)]),
        holds=lambda obj: all(_OBEYS[sign](float(obj[field]), limit) for sign, limit in given),
        message=f'want a decimal string {wanted}, got "{{{field}}}"',
        field=field,
        reads=(field,),
        limits=wanted,
    )


def at_most_field(field: str, limit: str) -> Rule:
    """Build the rule that an integer is no larger than another, optional one."""
    return Rule(
        cel=f"!has(self.{limit}) || self.{field} <= self.{limit}",
        holds=lambda obj: limit not in obj or obj[field] <= obj[limit],
        message=f"want {field} <= {limit}, got {{{field}}} and {{{limit}}}",
        field=field,
        reads=(field, limit),
    )


def only_alone(field: str, value: str) -> Rule:
    """Build the rule that a list which holds `value` holds nothing else."""
    return Rule(
        cel=f"!('{value}' in self.{field}) || size(self.{field}) == 1",
        holds=lambda obj: value not in obj[field] or len(obj[field]) == 1,
        message=f"{value} must be the only entry",
        field=field,
        reads=(field,),
    )


def must_be_empty(field: str, why: str) -> Rule:
    """Build the rule that an optional list stays empty."""
    return Rule(
        cel=f"!has(self.{field}) || size(self.{field}) == 0",
        holds=lambda obj: not obj.get(field),
        message=f"must be empty: {why}",
        field=field,
        reads=(field,),
    )


def plain_uri(field: str) -> Rule:
    """Build the rule that an optional URI has no `..` and no backslash, in whatever spelling."""
    return Rule(
        cel=f"!has(self.{field}) || !self.{field}.matches({json.dumps(CLIMBING_PATTERN)})",
        holds=lambda obj: field not in obj or not climbs(obj[field]),
        message=_NO_CLIMBING,
        field=field,
        reads=(field,),
    )


def plain_uris(field: str) -> Rule:
    """Build the rule of `plain_uri` for an optional list."""
    return Rule(
        cel=f"!has(self.{field}) || self.{field}.all(uri, !uri.matches({json.dumps(CLIMBING_PATTERN)}))",
        holds=lambda obj: not any(map(climbs, obj.get(field, []))),
        message=_NO_CLIMBING,
        field=field,
        reads=(field,),
    )


_NO_CLIMBING = "want a path without `..` and backslashes (also written %2e, %2f, %5c)"


def climbs(uri: str) -> bool:
    """Tell whether a URI holds `..` as a path part, or a backslash."""
    return re.search(CLIMBING_PATTERN, uri) is not None


def expressions_compile(field: str) -> Rule:
    """Build the rule that each entry of a list is a name or a regular expression. CEL sees the usual slips alone."""
    return Rule(
        cel=_cel_compiles(field),
        holds=lambda obj: all(map(_compiles, obj[field])),
        message=f"want module names or regular expressions that compile, got {{{field}}}",
        field=field,
        reads=(field,),
    )


def names_or_one_expression(field: str) -> Rule:
    """Build the rule that a list holds module names, or one regular expression alone."""
    alone = f"size(self.{field}) == 1 || self.{field}.all(entry, entry.matches({json.dumps(MODULE_NAME_PATTERN)}))"
    return Rule(
        cel=f"{_cel_compiles(field)} && ({alone})",
        holds=lambda obj: all(map(_compiles, obj[field])) and (len(obj[field]) == 1 or all(map(_is_name, obj[field]))),
        message=f"want module names, or one regular expression that compiles as the only entry, got {{{field}}}",
        field=field,
        reads=(field,),
    )


def _cel_compiles(field: str) -> str:
    return f"self.{field}.all(entry, !entry.matches({json.dumps(_BROKEN_PATTERN)}))"


def _is_name(entry: str) -> bool:
    return re.search(MODULE_NAME_PATTERN, entry) is not None


def _compiles(entry: str) -> bool:
    """Tell whether Python's `re` takes the expression, as PEFT will when it loads the adapter."""
    if re.search(_BROKEN_PATTERN, entry):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of syntax that may mean something else one day
            re.compile(entry)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def unique_items(field: str, keys: tuple[str, ...] = ()) -> Rule:
    """Build the rule of a list type `set` (no keys) or `map`; the structural schema says it to the API server."""

    def identities(items: list[Any]) -> list[Any]:
        return [tuple(item.get(key) for key in keys) if keys else item for item in items]

    def holds(obj: JsonObject) -> bool:
        seen = identities(obj.get(field, []))
        return len(seen) == len(set(seen))

    what = f"with the same {', '.join(keys)}" if keys else "that are equal"
    return Rule(cel="", holds=holds, message=f"holds two entries {what}", field=field, reads=(field,))
