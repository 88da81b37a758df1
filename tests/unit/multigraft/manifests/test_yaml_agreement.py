"""Our YAML reader gives the JSON that kubectl makes of the same text.

kubectl's side is Go's sigs.k8s.io/yaml, run in tests/kube/crdcheck.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml

from builders.crdcheck import Answer, Request, ask
from multigraft.manifests.yaml_reader import read_yaml
from multigraft.manifests.yaml_writer import write_yaml

SCALARS = """\
1e-4 1.0e-4 0.0001 1E-4 .0001 1e-4f +1e-4 -1e-4 1e4 1e+4 1E4 1.e4 1. .5 -.5 +.5 . - + .. .e1 1e 1e+ 0e0 0.0 -0 -0.0 +0
0 00 007 08 09 0123 -0123 0o17 0O17 0o8 0x1F 0X1f 0xG 0x 0b101 0B101 0b2 -0b11 0b -0x1F +0x1F 0x1p-2
1_000 1__0 _1 1_ 0x_1F 1_000.5 9223372036854775807 9223372036854775808 18446744073709551615 18446744073709551616
-9223372036854775808 -9223372036854775809 1e20 1e21 1e22 123456789012345678901234567890 1e308
1e309 1e400 -1e400 1e-400 5e-324 0.1 1e-6 1e-7
8.0 8.5 1e1 1.10 6801028 5176135 1e10 72225e2 100000000000000000000.0
y Y yes Yes YES yEs n N no No NO nO true True TRUE tRue false False FALSE on On ON oN off Off OFF t f T F
null Null NULL nUll ~ None none nil Nil undefined
.nan1 nan NaN inf Inf -inf infinity Infinity
2026-01-31 2026-1-3 2026-01-31T12:00:00Z 2026-01-31t12:00:00Z 12:30 12:30:45 1:2 190:20:30 2026 2026-13-45 20260131
1.2.3 v1.2 1-2 --- 0.1.2 0x 1e4e4 1,000 10% $1 1/2 a=b = == << <<< &x *x @x 1kg 4Gi 500m e4 E4 x1 0.1e1.5 .1.2
"""

TAGGED = [
    "!!str 123",
    "!!str",
    "!!int 7",
    "!!float 7",
    "!!float 7.5",
    "!!bool yes",
    "!!null null",
    '"123"',
    "'y'",
    "''",
    '""',
]
STRUCTURES = [
    "a: {b: [1, two, 3.0]}",
    "a:\n- b\n-  c: d\n   e: f",
    "a: |\n  one\n  two\n",
    "a: >-\n  one\n  two\n",
    "a: 'it''s'\nb: \"tab\\there\"",
    "a: &x {k: 1}\nb: *x",
    "a: &x [1, 2]\nb: {c: *x}",
    "base: &x {k: 1, l: 2}\nb: {<<: *x, k: 3}",
    "base: &x {k: 1}\nmore: &y {k: 2, m: 3}\nb: {<<: [*x, *y]}",
    "a: # nothing\nb: 1",
    "? a\n: b",
    "a: [a, b, ]",
    "a: b # comment",
    "a: b#c",
    'a: "x\\u00e9"\nb: é',
    "{a: 1, 'b': 2}",
    '{"a": 1.5e3, "b": "c"}',
    "a:\r\n  b: c\r\n",
    "%YAML 1.1\n---\na: b",
]


def make_manifests() -> list[str]:
    plain = [f"v: {text}" for text in [*SCALARS.split(), *TAGGED]]
    in_list = [f"v: [{text}]" for text in SCALARS.split() if not set(text) & set(",[]{}&*!@%=-~")]
    return [*plain, *in_list, *STRUCTURES]


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    manifests = make_manifests()
    return dict(zip(manifests, ask([Request(text) for text in manifests]), strict=True))


def same(got: Any, want: Any) -> bool:
    """Compare with types: 1 is neither 1.0 nor true."""
    if isinstance(got, dict) and isinstance(want, dict):
        return got.keys() == want.keys() and all(same(got[key], want[key]) for key in got)
    if isinstance(got, list) and isinstance(want, list):
        return len(got) == len(want) and all(map(same, got, want))
    return type(got) is type(want) and got == want


@pytest.mark.parametrize("text", make_manifests())
def test_value_is_what_kubectl_reads(text: str, answers: dict[str, Answer]) -> None:
    want = answers[text].decoded
    got = read_yaml(text)
    if want is None:
        assert got.faults, f"kubectl refuses this, got {got.value!r}"
        return
    assert not got.faults
    assert same(got.value, want), f"got {got.value!r}, want {want!r}"


@pytest.mark.parametrize("text", make_manifests())
def test_both_parsers_of_pyyaml_read_the_same(text: str) -> None:
    plain, fast = (read_yaml(text, parser=parser) for parser in (yaml.SafeLoader, yaml.CSafeLoader))
    assert bool(plain.faults) == bool(fast.faults)
    if not plain.faults:
        assert same(plain.value, fast.value)


def test_written_text_is_read_back_as_the_same_text_by_kubectl() -> None:
    texts = [*SCALARS.split(), "", " a", "a ", "a\nb", "é", "a: b", "- a", "#"]
    value = {f"k{index}": text for index, text in enumerate(texts)}
    assert ask([Request(write_yaml(value))])[0].decoded == value


def test_not_a_number_is_a_number_that_json_cannot_hold() -> None:
    for text in (".nan", ".NaN", ".NAN"):
        assert math.isnan(read_yaml(f"v: {text}").value["v"])
    for text, want in ((".inf", math.inf), ("+.Inf", math.inf), ("-.INF", -math.inf)):
        assert read_yaml(f"v: {text}").value["v"] == want
    assert all(not a.accepted and a.decoded is None for a in ask([Request("v: .nan"), Request("v: -.inf")]))


def test_json_is_read_as_kubectl_reads_it() -> None:
    texts = ['{"v": 8.0}', '{"v": 1e2}', '{"v": 1e400}', '{"v": 9223372036854775808}', '{"v": "\\u00e9"}']
    for text, answer in zip(texts, ask([Request(text) for text in texts]), strict=True):
        assert json.dumps(read_yaml(text).value) == json.dumps(answer.decoded)
