"""Read one YAML document as kubectl would, and refuse what kubectl would misread or let pass silently.

Values are built from parser events with an explicit stack: no recursion, so that a deeply nested or self-referring
document cannot exhaust it, and aliases are counted as what they expand to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from multigraft.manifests.document import Fault, Path, Place
from multigraft.manifests.scalars import resolve_plain

MAX_VALUES = 200_000
"""Values in one document, aliases expanded. The API server takes objects up to 1.5 MiB, which hold far fewer."""
MAX_DEPTH = 64

_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
_BYTE_ORDER_MARK = "\ufeff"
_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class YamlResult:
    """What one document holds; `is_empty` if there is nothing but comments."""

    value: Any = None
    is_empty: bool = True
    places: dict[Path, Place] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


@dataclass
class _Frame:
    """A list or mapping that is still open."""

    value: list[Any] | dict[str, Any]
    path: Path
    line: int
    values_before: int
    anchor: str | None
    key: str | None = None  # of a mapping: the key whose value comes next
    merged: dict[str, Any] = field(default_factory=dict)  # keys that `<<` brings in


class _StopReading(Exception):  # noqa: N818 - not an error: the fault is already noted
    """The rest of the document cannot be read."""


def read_yaml(text: str, *, first_line: int = 1, parser: Any = _PARSER) -> YamlResult:
    """Read `text`, which holds one document that begins at `first_line` of its file."""
    builder = _Builder(first_line)
    for number, line in enumerate(text.split("\n"), start=first_line):
        if line.lstrip(" ").startswith(_BYTE_ORDER_MARK):  # PyYAML skips it, kubectl takes it for a letter
            builder.result.faults.append(Fault((), "a byte-order mark in the midst of the file; remove it", number))
            return builder.result
    try:
        for event in yaml.parse(text, Loader=parser):
            builder.take(event)
    except _StopReading:
        pass
    except yaml.YAMLError as error:
        builder.result.faults.append(_explain_syntax(error, text, first_line))
    return builder.result


def _explain_syntax(error: yaml.YAMLError, text: str, first_line: int) -> Fault:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
    if mark is None:
        return Fault((), f"not YAML: {problem}", first_line)
    lines = text.split("\n")
    if mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t":
        problem = "a tab stands where blanks are wanted"
    return Fault((), f"not YAML: {problem}", first_line + mark.line)


class _Builder:
    """Builds values from events, in the order in which they are written."""

    def __init__(self, first_line: int) -> None:
        self.result = YamlResult()
        self._first_line = first_line
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._num_values = 0
        self._num_documents = 0

    def take(self, event: Any) -> None:
        match event:
            case yaml.DocumentStartEvent():
                self._start_document(event)
            case yaml.ScalarEvent():
                self._take_scalar(event)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._open(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._close()
            case yaml.AliasEvent():
                self._take_alias(event)

    def _start_document(self, event: Any) -> None:
        self._num_documents += 1
        if self._num_documents > 1:
            self._stop("more text after the end of the document (`...`); separate documents by `---`", event)

    def _take_scalar(self, event: Any) -> None:
        self._count(1, event)
        if self._wants_key():
            self._take_key(event)
            return
        path = self._next_path()
        is_plain = event.implicit[0]
        self.result.places[path] = Place(self._line(event), event.value if is_plain else None)
        value = resolve_plain(event.value) if is_plain else self._resolve_tagged(event, path)
        self._remember(event.anchor, value, 1)
        self._put(value, event)

    def _resolve_tagged(self, event: Any, path: Path) -> Any:
        """Give the value of a quoted scalar or one with an explicit tag."""
        if event.tag in {None, "!", _TAG + "str"}:
            return event.value
        kinds: dict[str, tuple[type, ...]] = {
            "int": (int,),
            "float": (int, float),
            "bool": (bool,),
            "null": (type(None),),
        }
        name = event.tag.removeprefix(_TAG)
        value = resolve_plain(event.value)
        if name not in kinds or not isinstance(value, kinds[name]):
            self._fault(path, f"tag {event.tag.replace(_TAG, '!!')} does not fit; leave it out", event)
        return value

    def _take_key(self, event: Any) -> None:
        frame = self._stack[-1]
        is_plain = event.implicit[0]
        key = event.value
        path = (*frame.path, key)
        if is_plain and key == _MERGE:
            frame.key = _MERGE
            return
        if is_plain and not isinstance(resolve_plain(key), str):
            self._fault(path, f'key {key or "(empty)"} is not text; quote it: "{key}"', event)
        if key in frame.value:
            self._fault(path, "key is written twice in the same object", event)
        if key in frame.merged:
            del frame.merged[key]
        self.result.places[path] = Place(self._line(event))
        self._remember(event.anchor, key, 1)
        frame.key = key

    def _open(self, event: Any) -> None:
        self._count(1, event)
        if self._wants_key():
            self._stop("a key must be text, not a list or object", event)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        path = self._next_path()
        if len(self._stack) >= MAX_DEPTH:
            self._stop(f"nested more than {MAX_DEPTH} deep", event)
        if event.tag not in {None, "!", _TAG + ("map" if is_mapping else "seq")}:
            self._fault(path, f"tag {event.tag.replace(_TAG, '!!')} does not fit; leave it out", event)
        place = self.result.places.get(path)
        self.result.places[path] = place if place and is_mapping else Place(self._line(event))
        value: list[Any] | dict[str, Any] = {} if is_mapping else []
        self._stack.append(_Frame(value, path, self._line(event), self._num_values, event.anchor))

    def _close(self) -> None:
        frame = self._stack.pop()
        if isinstance(frame.value, dict):
            frame.value.update(frame.merged)
        self._remember(frame.anchor, frame.value, self._num_values - frame.values_before + 1)
        self._put(frame.value, None)

    def _take_alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            self._stop(f"alias *{event.anchor} has no finished anchor &{event.anchor} before it", event)
        value, size = self._anchors[event.anchor]
        self._count(size, event)
        if self._wants_key():
            self._stop("an alias cannot be a key here; write the key out", event)
        self.result.places[self._next_path()] = Place(self._line(event))
        self._put(value, event)

    def _put(self, value: Any, event: Any) -> None:
        """Put a finished value where it belongs."""
        if not self._stack:
            self.result.value = value
            self.result.is_empty = value is None
            return
        frame = self._stack[-1]
        if isinstance(frame.value, list):
            frame.value.append(value)
        elif frame.key == _MERGE:
            self._merge(frame, value, event)
            frame.key = None
        elif frame.key is not None:
            frame.value[frame.key] = value
            frame.key = None

    def _merge(self, frame: _Frame, value: Any, event: Any) -> None:
        sources = value if isinstance(value, list) else [value]
        for source in sources:
            if not isinstance(source, dict):
                self._stop("`<<` wants an object or a list of objects", event)
            if not set(frame.value).isdisjoint(source):
                # YAML lets the written key win, kubectl the merged one
                self._fault(frame.path, "`<<` must stand before the keys that replace what it brings in", event)
            frame.merged = {**source, **frame.merged}

    def _wants_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].value, dict) and self._stack[-1].key is None

    def _next_path(self) -> Path:
        if not self._stack:
            return ()
        frame = self._stack[-1]
        if isinstance(frame.value, list):
            return (*frame.path, len(frame.value))
        return frame.path if frame.key is None else (*frame.path, frame.key)

    def _remember(self, anchor: str | None, value: Any, size: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, size)

    def _count(self, size: int, event: Any) -> None:
        self._num_values += size
        if self._num_values > MAX_VALUES:
            self._stop(f"more than {MAX_VALUES} values, aliases expanded", event)

    def _line(self, event: Any) -> int:
        return self._first_line + int(event.start_mark.line)

    def _fault(self, path: Path, message: str, event: Any) -> None:
        self.result.faults.append(Fault(path, message, self._line(event) if event else None))

    def _stop(self, message: str, event: Any) -> None:
        self._fault(self._stack[-1].path if self._stack else (), message, event)
        raise _StopReading
