"""Read the documents of one manifest file, YAML or JSON, told apart and split as kubectl does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath

from multigraft.manifests.document import Document, Fault
from multigraft.manifests.json_reader import read_json
from multigraft.manifests.yaml_reader import read_yaml

MAX_FILE_BYTES = 64 << 20

_SEPARATOR = re.compile(r"^---[ \t\r]*(#.*)?$")


def read_documents(file: FilePath) -> list[Document]:
    """Read every object of `file`; items of a `List` count as objects. Faults are in the documents, none is raised."""
    text = _read_text(file)
    if isinstance(text, Fault):
        return [Document("file", None, faults=(text,))]
    documents = list(_read_as_json(text)) if text.lstrip()[:1] == "{" else list(_read_as_yaml(text))
    if file.suffix != ".json" and documents and documents[-1].faults and text.lstrip()[:1] == "{":
        documents = list(_read_as_yaml(text))  # YAML may begin with a brace too
    return [item for document in documents for item in _expand_list(document)]


def _read_text(file: FilePath) -> str | Fault:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            return Fault((), f"file of {file.stat().st_size} bytes, want at most {MAX_FILE_BYTES}")
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Fault((), f"not UTF-8 text: {error.reason} at byte {error.start}")
    except OSError as error:
        return Fault((), f"cannot be read: {error.strerror}")


def _read_as_json(text: str) -> Iterator[Document]:
    for number, (line, value, faults) in enumerate(read_json(text), start=1):
        yield Document(f"document {number}", value, line=line, faults=faults)


def _read_as_yaml(text: str) -> Iterator[Document]:
    number = 0
    for first_line, chunk, fault in _split(text):
        result = read_yaml(chunk, first_line=first_line)
        faults = (*([fault] if fault else []), *result.faults)
        if result.is_empty and not faults:
            continue
        number += 1
        yield Document(f"document {number}", result.value, line=first_line, places=result.places, faults=faults)


def _split(text: str) -> Iterator[tuple[int, str, Fault | None]]:
    """Yield (first line, text, fault) of each document; a line that begins with `---` separates."""
    lines: list[str] = []
    first_line, fault = 1, None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.startswith("---"):
            lines.append(line)
            continue
        yield first_line, "\n".join(lines), fault
        lines, first_line = [], number + 1
        message = "nothing but a comment may follow `---` on its line"
        fault = None if _SEPARATOR.match(line) else Fault((), message, number)
    yield first_line, "\n".join(lines), fault


def _expand_list(document: Document) -> Iterator[Document]:
    value = document.value
    is_list = isinstance(value, dict) and str(value.get("kind", "")).endswith("List") and "items" in value
    if not is_list or not isinstance(value["items"], list):
        yield document
        return
    for index, item in enumerate(value["items"]):
        path = ("items", index)
        inside = tuple(replace(f, path=f.path[2:]) for f in document.faults if f.path[:2] == path)
        label = f"{document.label} item {index + 1}"
        yield replace(document, label=label, value=item, base=path, line=document.line_of(path), faults=inside)
    outside = tuple(f for f in document.faults if f.path[:1] != ("items",) or len(f.path) < 2)
    if outside:
        yield replace(document, value=None, faults=outside)
