"""What the YAML reader refuses, with the line."""

from __future__ import annotations

import math

import pytest
import yaml

from builders.crdcheck import Request, ask
from multigraft.manifests import yaml_reader
from multigraft.manifests.json_reader import read_json
from multigraft.manifests.scalars import resolve_plain
from multigraft.manifests.yaml_reader import read_yaml

PARSERS = [yaml.SafeLoader, yaml.CSafeLoader]

REFUSED = [
    ("key written twice", "a: 1\nb: 2\na: 3\n", 3, "key is written twice in the same object"),
    ("key written twice deep down", "a:\n  - b: 1\n    b: 1\n", 3, "key is written twice in the same object"),
    ("tab as indentation", "a:\n\tb: 1\n", 2, "a tab stands where blanks are wanted"),
    ("number as key", "a: 1\n1: x\n", 2, 'key 1 is not text; quote it: "1"'),
    ("boolean as key", "on: x\n", 1, 'key on is not text; quote it: "on"'),
    ("nothing as key", "{? : x}\n", 1, "key (empty) is not text"),
    ("list as key", "? [a]\n: b\n", 1, "a key must be text"),
    ("alias as key", "a: &x b\n*x : c\n", 2, "an alias cannot be a key here"),
    ("alias without anchor", "a: *x\n", 1, "has no finished anchor"),
    ("anchor within itself", "a: &x [*x]\n", 1, "has no finished anchor"),
    ("merge after a key that it brings in", "a: &x {k: 1}\nb: {k: 3, <<: *x}\n", 2, "`<<` must stand before"),
    ("merge of text", "a: {<<: b}\n", 1, "`<<` wants an object"),
    ("tag of another language", "a: !!python/object:os.system {}\n", 1, "does not fit; leave it out"),
    ("tag of our own making", "a: !secret b\n", 1, "tag !secret does not fit; leave it out"),
    ("tag that contradicts its value", "a: !!int b\n", 1, "tag !!int does not fit; leave it out"),
    ("two documents without separator", "a: 1\n...\nb: 2\n", 3, "not YAML"),
    ("text after an explicit end", "a: 1\n...\n%YAML 1.1\n---\nb: 2\n", 3, "more text after the end of the document"),
    ("unclosed quote", 'a: "b\n', 2, "not YAML"),
    ("byte-order mark of a second file", "a: 1\n\ufeffb: 2\n", 2, "a byte-order mark in the midst of the file"),
    ("control character", "a: \x07\n", 1, "not YAML"),
    ("nested without end", "[" * 500, 1, "nested more than 64 deep"),
]


@pytest.mark.parametrize("parser", PARSERS, ids=["plain", "libyaml"])
@pytest.mark.parametrize("text, line, says", [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused(text: str, line: int, says: str, parser: type) -> None:
    faults = read_yaml(text, parser=parser).faults
    assert says in faults[0].message
    assert faults[0].line == line


def test_every_fault_of_a_document_is_found() -> None:
    got = [fault.path for fault in read_yaml("a: 1\na: 2\nc: {1: x, on: y}\nd: !x z\n").faults]
    assert got == [("a",), ("c", "1"), ("c", "on"), ("d",)]


def test_aliases_that_expand_without_bound_are_refused() -> None:
    rows = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    rows += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    (fault,) = read_yaml("\n".join(rows)).faults
    assert "values, aliases expanded" in fault.message
    assert fault.path == ("a5",)


def test_aliases_that_merge_without_bound_are_refused() -> None:
    rows = ["a0: &a0 {k: [" + ",".join("x" * 100) + "]}"]
    rows += [f"a{i}: &a{i} [{','.join(['*a' + str(i - 1)] * 20)}]" for i in range(1, 8)]
    assert "aliases expanded" in read_yaml("\n".join(rows)).faults[0].message


def test_a_long_document_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_reader, "MAX_VALUES", 50)
    (fault,) = read_yaml("\n".join(f"k{i}: v" for i in range(100))).faults
    assert "more than 50 values" in fault.message


def test_places_give_line_and_spelling() -> None:
    got = read_yaml("a:\n  b: 1e-4\n  c: ['x', 0123]\n", first_line=7).places
    assert (got["a", "b"].line, got["a", "b"].written) == (8, "1e-4")
    assert (got["a", "c", 0].line, got["a", "c", 0].written) == (9, None)
    assert (got["a", "c", 1].line, got["a", "c", 1].written) == (9, "0123")


@pytest.mark.parametrize("text", ["", "# only a comment\n", "null\n", "---\n", "~"])
def test_document_without_anything(text: str) -> None:
    got = read_yaml(text)
    assert got.is_empty
    assert got.faults == []


def test_merge_keeps_what_is_written_after_it() -> None:
    text = "a: &x {k: 1, l: 2}\nb: {<<: *x, k: 3}\n"
    assert read_yaml(text).value["b"] == {"k": 3, "l": 2}
    assert ask([Request(text)])[0].decoded["b"] == {"k": 3, "l": 2}


def test_kubectl_reads_the_merge_that_is_refused_another_way_than_yaml() -> None:
    text = "a: &x {k: 1}\nb: {k: 3, <<: *x}\n"
    assert ask([Request(text)])[0].decoded["b"] == {"k": 1}, "the reason for the refusal"


def test_an_integer_of_thousands_of_digits_is_no_crash() -> None:
    digits = "9" * 5000
    assert resolve_plain(digits) == digits  # as Go, which refuses a float that overflows
    (_, value, faults), *rest = read_json(f'{{"r": {digits}}}')
    assert (value, faults, rest) == ({"r": math.inf}, (), [])
