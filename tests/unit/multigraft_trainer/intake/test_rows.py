from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.cases import case_file
from builders.intake import codes, write_lines
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake import jsonl, rows
from multigraft_trainer.intake.codes import RowCode
from multigraft_trainer.intake.row import Row
from multigraft_trainer.intake.rows import read_rows

BOM = b"\xef\xbb\xbf"


def values(path: Path) -> list[tuple[int, dict[str, Any]]]:
    return [(row.number, row.value) for row in read_rows(path) if isinstance(row, Row)]


def refusal(path: Path) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        list(read_rows(path))
    assert len(str(caught.value)) < 500
    return caught.value


def test_A01_byte_order_mark_is_not_data() -> None:
    got = values(case_file("A01", "data.jsonl"))
    assert got == values(case_file("A01", "twin_no_bom.jsonl"))
    lines = case_file("A01", "twin_no_bom.jsonl").read_text().splitlines()
    assert [json.dumps(value, ensure_ascii=False) for _, value in got] == lines


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_A01_another_unicode_encoding_is_refused_by_name(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes('{"text": "a"}\n'.encode(encoding))
    error = refusal(path)
    assert error.reason == Reason.INVALID_DATASET
    assert f"UTF-{encoding[4:6]}" in error.message
    assert "UTF-8" in error.message


def test_A01_marks_of_files_glued_together_are_not_data(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [BOM + b'{"n": 1}', BOM + BOM + b'{"n": 2}', BOM])
    assert values(path) == [(1, {"n": 1}), (2, {"n": 2})]


def test_A02_rows_keep_their_physical_line_numbers() -> None:
    got = values(case_file("A02", "data.jsonl"))
    assert [number for number, _ in got] == [2, 4, 6, 10]
    assert [value for _, value in got] == [value for _, value in values(case_file("A02", "lf_twin.jsonl"))]
    assert "\\r" not in json.dumps([value for _, value in got])


@pytest.mark.parametrize(
    "name, line, words",
    [
        ("array.jsonl", 1, "array"),
        ("pretty.jsonl", 1, "several lines"),
        ("pyquotes.jsonl", 1, "double quotes"),
        ("cut_last_line.jsonl", 3, "cut short"),
        ("notobject.jsonl", 1, "one JSON object"),
        ("trailing_comma.jsonl", 1, "one whole JSON object"),
    ],
)
def test_A04_another_container_is_refused_with_file_line_and_cause(name: str, line: int, words: str) -> None:
    error = refusal(case_file("A04", name))
    assert error.reason == Reason.INVALID_DATASET
    assert f"'{name}', line {line}:" in error.message
    assert words in error.message


GOOD = b'{"n": 1}'


@pytest.mark.parametrize(
    "lines, line, words",
    [
        pytest.param([GOOD, b"[", b"]", GOOD], 2, "several lines", id="an array over many lines after good rows"),
        pytest.param([GOOD, b"{", b'"n": 1', b"}", GOOD], 2, "several lines", id="a pretty object after good rows"),
        pytest.param([GOOD, b"{'n': 1}", GOOD], 2, "double quotes", id="a Python literal between good rows"),
        pytest.param([GOOD, b"7", GOOD], 2, "a number", id="a number between good rows"),
        pytest.param([GOOD, b"null"], 2, "null", id="null at the end"),
        pytest.param([GOOD, b'{"n": 1'], 2, "cut short", id="a cut last line with a line end"),
        pytest.param([GOOD, b'{"n": "\xe2\x82'], 2, "cut short", id="a last line cut inside a character"),
        pytest.param([GOOD, b"\x00" * 4096], 2, "cut short", id="a tail of NULs, as after a crash"),
        pytest.param([b'{"n": 1}\r{"n": 2}'], 1, "one whole JSON object", id="lines ended by CR only"),
        pytest.param([b"n,m", b"1,2"], 1, "one whole JSON object", id="CSV"),
        pytest.param([b"", b"  ", b"<html>"], 3, "one whole JSON object", id="a web page after blank lines"),
    ],
)
def test_A04_faults_of_the_whole_file_are_refused(tmp_path: Path, lines: list[bytes], line: int, words: str) -> None:
    error = refusal(write_lines(tmp_path / "data.jsonl", lines))
    assert error.reason == Reason.INVALID_DATASET
    assert f"line {line}:" in error.message
    assert words in error.message


def test_A04_a_cut_line_without_line_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(GOOD + b"\n" + GOOD[:-1])
    assert "cut short" in refusal(path).message


@pytest.mark.parametrize(
    "line, want",
    [
        pytest.param(b'{"n": 1,}', RowCode.INVALID_JSON, id="a trailing comma"),
        pytest.param(b'{"n": ', RowCode.INVALID_JSON, id="a line cut between good ones"),
        pytest.param(b'{"n": "\xff"}', RowCode.NOT_UTF8, id="a byte that is not UTF-8"),
        pytest.param(b'{"n": "\xed\xa0\x80"}', RowCode.NOT_UTF8, id="a surrogate as bytes"),
        pytest.param(b'{"n": "\\ud800"}', RowCode.LONE_SURROGATE, id="half of a surrogate pair"),
        pytest.param(b'{"n": NaN}', RowCode.INVALID_NUMBER, id="NaN"),
        pytest.param(b'{"n": 1, "n": 2}', RowCode.DUPLICATE_KEY, id="a key twice"),
        pytest.param(b'{"n":' * 5000 + b"1" + b"}" * 5000, RowCode.NESTED_TOO_DEEP, id="deep nesting"),
    ],
)
def test_a_bad_line_between_good_ones_is_a_row_with_a_code(tmp_path: Path, line: bytes, want: RowCode) -> None:
    path = write_lines(tmp_path / "data.jsonl", [GOOD, line, GOOD])
    assert codes(path) == [(2, want)]
    assert [number for number, _ in values(path)] == [1, 3]


def test_two_bad_lines_one_after_the_other_are_two_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [GOOD, b'{"n": 1,}', b'{"n": 2,}', GOOD])
    assert codes(path) == [(2, RowCode.INVALID_JSON), (3, RowCode.INVALID_JSON)]


def test_line_separators_of_unicode_end_no_line(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\u0085d\x1ce\x0bf"
    raw = json.dumps({"t": text}, ensure_ascii=False).replace("\\u000b", "\\u000b")
    path = write_lines(tmp_path / "data.jsonl", [raw])
    assert values(path) == [(1, {"t": text})]


def test_a_line_over_the_limit_is_dropped_without_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_ROW_BYTES", 32)
    exact = b'{"t": "' + b"x" * 23 + b'"}'
    assert len(exact) == 32
    path = write_lines(tmp_path / "data.jsonl", [GOOD, b'{"t": "' + b"x" * 3_000_000 + b'"}', exact, GOOD])
    assert codes(path) == [(2, RowCode.ROW_TOO_LONG)]
    assert [number for number, _ in values(path)] == [1, 3, 4]


def test_too_many_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_ROWS", 2)
    assert "more than 2 rows" in refusal(write_lines(tmp_path / "data.jsonl", [GOOD, b"", GOOD, GOOD])).message


# ---- gzip


def test_gzip_gives_the_rows_of_the_plain_file_whatever_the_name(tmp_path: Path) -> None:
    plain = case_file("A02", "data.jsonl")
    for name in ("data.jsonl.gz", "data.jsonl", "data.json"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(plain.read_bytes()))
        assert values(path) == values(plain)


def test_gzip_members_glued_together_are_read_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD + b"\n") + gzip.compress(GOOD + b"\n"))
    assert len(values(path)) == 2


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_gzip_file_is_refused(tmp_path: Path, share: float) -> None:
    whole = gzip.compress(b"\n".join(json.dumps({"t": os.urandom(20).hex()}).encode() for _ in range(2000)))
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(whole[: int(len(whole) * share)])
    error = refusal(path)
    assert error.reason == Reason.INVALID_DATASET
    assert "gzip" in error.message


@pytest.mark.parametrize("place", [3, 40, -3])
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, place: int) -> None:
    whole = bytearray(gzip.compress(b"\n".join(json.dumps({"t": os.urandom(20).hex()}).encode() for _ in range(200))))
    whole[place] ^= 0xFF
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(whole)
    assert refusal(path).reason == Reason.INVALID_DATASET


def test_junk_after_a_gzip_member_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD + b"\n") + b"junk")
    assert "gzip" in refusal(path).message


@pytest.mark.parametrize("filler", [b" ", b"\n"], ids=["one endless line", "endless blank lines"])
def test_a_gzip_bomb_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filler: bytes) -> None:
    monkeypatch.setattr(rows, "GZIP_RATIO_FLOOR_BYTES", 2**20)
    packer = zlib.compressobj(9, wbits=31)
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(b"".join([*(packer.compress(filler * 2**20) for _ in range(200)), packer.flush()]))
    assert "unfolds to more than" in refusal(path).message


# ---- other files


@pytest.mark.parametrize(
    "name, data, words",
    [
        ("data.jsonl.zst", b"\x28\xb5\x2f\xfd....", "zstd"),
        ("data.jsonl", b"PK\x03\x04....", "zip"),
        ("data.jsonl.bz2", b"BZh9....", "bzip2"),
        ("data.jsonl.xz", b"\xfd7zXZ\x00..", "xz"),
        ("data.arrow", b"ARROW1\x00\x00", "Arrow"),
        ("data.jsonl.gz", GOOD, "what its name says"),
        ("data.parquet", GOOD, "what its name says"),
    ],
)
def test_other_containers_are_refused_by_name(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    error = refusal(path)
    assert error.reason == Reason.INVALID_DATASET
    assert words in error.message


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing.jsonl", ".", "pipe", "x" * 300):
        assert refusal(tmp_path / name).reason == Reason.DATASET_NOT_FOUND


# ---- properties

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    items=st.lists(st.dictionaries(TEXT, JSON, max_size=3), max_size=6),
    ends=st.sampled_from([b"\n", b"\r\n", b" \n", b"\n\n", b"\r\n \t\r\n"]),
    escaped=st.booleans(),
    bom=st.booleans(),
    last_end=st.booleans(),
    packed=st.booleans(),
)
def test_any_objects_come_back_as_they_went_in(
    tmp_path_factory: pytest.TempPathFactory,
    items: list[dict[str, Any]],
    ends: bytes,
    escaped: bool,
    bom: bool,
    last_end: bool,
    packed: bool,
) -> None:
    data = ends.join(json.dumps(item, ensure_ascii=escaped).encode() for item in items) + (ends if last_end else b"")
    path = tmp_path_factory.mktemp("rows") / "data"
    data = (BOM if bom else b"") + data
    path.write_bytes(gzip.compress(data) if packed else data)
    got = list(read_rows(path))
    assert [row.value for row in got if isinstance(row, Row)] == items
    assert [row.number for row in got if isinstance(row, Row)] == [1 + ends.count(b"\n") * i for i in range(len(items))]


LINES = st.one_of(
    st.binary(max_size=20),
    st.dictionaries(TEXT, JSON, max_size=2).map(lambda item: json.dumps(item).encode()),
    st.sampled_from(
        [b"", b" ", b"\r", b"{", b"[]", b"null", b'{"a": NaN}', b'{"a": "\\ud800"}', b'{"a"', b"{'a': 1}", BOM]
    ),
)


@settings(max_examples=300, deadline=None)
@given(lines=st.lists(LINES, max_size=8))
def test_every_physical_line_is_a_row_or_blank_or_the_file_is_refused(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "data.jsonl"
    path.write_bytes(b"\n".join(lines))
    try:
        got = list(read_rows(path))
    except RefusalError:
        assert refusal(path).reason == Reason.INVALID_DATASET
        return
    numbers = [row.number if isinstance(row, Row) else row.row for row in got]
    physical = b"\n".join(lines).split(b"\n")
    want = [n for n, line in enumerate(physical, 1) if line.strip(b" \t\r").replace(BOM, b"").strip(b" \t\r")]
    assert numbers == want
