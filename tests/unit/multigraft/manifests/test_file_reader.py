"""How a file is cut into documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from multigraft.manifests import file_reader
from multigraft.manifests.file_reader import read_documents


def read(folder: Path, content: str | bytes, name: str = "a.yaml") -> list[Any]:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_documents(file)


@pytest.mark.parametrize(
    "content, want",
    [
        ("a: 1\n", [("document 1", {"a": 1}, 1)]),
        ("---\na: 1\n---\nb: 2\n", [("document 1", {"a": 1}, 2), ("document 2", {"b": 2}, 4)]),
        (
            "# licence\n---\na: 1\n---\n# nothing\n---\nb: 2\n",
            [("document 1", {"a": 1}, 3), ("document 2", {"b": 2}, 7)],
        ),
        ("---   # first\na: 1\n", [("document 1", {"a": 1}, 2)]),
        ("a: |\n  ---\n  b\n", [("document 1", {"a": "---\nb\n"}, 1)]),
        ("a: 1\r\n---\r\nb: 2\r\n", [("document 1", {"a": 1}, 1), ("document 2", {"b": 2}, 3)]),
        ("\ufeffa: 1\n", [("document 1", {"a": 1}, 1)]),
        ("{a: 1}\n", [("document 1", {"a": 1}, 1)]),
        ('{"a": 1}\n{"b": 2.0}\n', [("document 1", {"a": 1}, 1), ("document 2", {"b": 2}, 2)]),
        ("", []),
        ("---\n---\n", []),
    ],
    ids=[
        "one document",
        "a leading separator",
        "empty documents do not count",
        "a comment after the separator",
        "a separator inside text",
        "Windows line ends",
        "a byte-order mark",
        "YAML that begins with a brace",
        "JSON objects one after another",
        "an empty file",
        "separators alone",
    ],
)
def test_documents(content: str, want: list[tuple[str, Any, int]], tmp_path: Path) -> None:
    got = read(tmp_path, content)
    assert [(d.label, d.value, d.line) for d in got] == want
    assert not any(d.faults for d in got)


@pytest.mark.parametrize(
    "content, name, says",
    [
        (b"\xff\xfea: 1", "a.yaml", "not UTF-8 text"),
        ("--- {a: 1}\n", "a.yaml", "nothing but a comment may follow `---`"),
        ('{"a": 1, "a": 2}', "a.json", "key a is written twice"),
        ('{"a": NaN}', "a.json", "NaN is not a JSON number"),
        ('{"a": 1,}', "a.json", "not JSON"),
        ("{" * 100_000, "a.json", "not JSON"),
        ('{"a":' * 100_000, "a.json", "nested too deep"),
    ],
)
def test_refused(content: str | bytes, name: str, says: str, tmp_path: Path) -> None:
    (fault,) = (fault for document in read(tmp_path, content, name) for fault in document.faults)
    assert says in fault.message


def test_a_broken_document_does_not_hide_the_others(tmp_path: Path) -> None:
    got = read(tmp_path, "a: 1\n---\nb: [\n---\nc: 3\n")
    assert [bool(d.faults) for d in got] == [False, True, False]
    assert got[2].value == {"c": 3}


def test_items_of_a_list_are_objects_with_their_lines(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: List\nitems:\n- kind: A\n  a: 1e-4\n- kind: B\n  b: 1\n  b: 2\n"
    first, second = read(tmp_path, text)
    assert (first.label, first.value, first.line) == ("document 1 item 1", {"kind": "A", "a": 0.0001}, 4)
    assert (first.line_of(("a",)), first.written_at(("a",))) == (5, "1e-4")
    assert first.faults == ()
    assert [(fault.path, fault.line) for fault in second.faults] == [(("b",), 8)]


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reader, "MAX_FILE_BYTES", 10)
    (document,) = read(tmp_path, "a: 1234567890\n")
    assert "file of 14 bytes, want at most 10" in document.faults[0].message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (document,) = read_documents(tmp_path / "absent.yaml")
    assert "cannot be read: No such file" in document.faults[0].message
