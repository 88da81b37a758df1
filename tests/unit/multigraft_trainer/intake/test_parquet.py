from __future__ import annotations

import json
import random
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders.cases import case_file
from builders.intake import chat, codes, dropped_codes, load, whole_text, write_lines
from multigraft.api.adapter_job import BadRowPolicy, DatasetFormat
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake import parquet
from multigraft_trainer.intake.codes import RowCode
from multigraft_trainer.intake.row import Row
from multigraft_trainer.intake.rows import read_rows


def write(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def arrow_ready(path: Path) -> list[dict[str, Any]]:
    """Read rows without the one list of the case files that mixes a number and an object, which no column can hold."""
    text = path.read_text().replace('[1, {"z": 2}]', '[{"z": 2}]')
    return [json.loads(line) for line in text.splitlines()]


def all_tokens(path: Path, **options: Any) -> list[list[int]]:
    return [sample.input_ids.tolist() for sample in load(path, **options).samples]


def test_A05_rows_keep_their_own_keys_from_jsonl_json_text_and_nested_columns(tmp_path: Path) -> None:
    source = case_file("A05", "data.jsonl")
    rows = read_jsonl(source)
    texts = [whole_text(sample) for sample in load(source).samples]
    assert len(texts) == 4
    for text in texts:
        assert "null" not in text
        assert "None" not in text
    assert "title" not in texts[0]
    assert "order_id" not in texts[1]
    assert '{"text": "hi"}' in texts[2]
    assert "part one part two" in texts[3]

    as_text = write(
        tmp_path / "text.parquet",
        messages=[json.dumps(row["messages"]) for row in rows],
        tools=[json.dumps(row["tools"]) if "tools" in row else None for row in rows],
    )
    assert all_tokens(as_text) == all_tokens(source)

    # nor can it hold an object in one row and text in another: row 3's arguments are the object, row 4's content the
    # joined text
    rows = arrow_ready(source)
    rows[2]["messages"][1]["tool_calls"][0]["function"]["arguments"] = {"text": "hi"}
    rows[3]["messages"][0]["content"] = "part one part two"
    nested = write(
        tmp_path / "nested.parquet",
        messages=[row["messages"] for row in rows],
        tools=[row.get("tools") for row in rows],
    )
    kind = str(pq.read_schema(nested).field("messages").type)
    assert "order_id" in kind
    assert "title" in kind
    assert all_tokens(nested) == all_tokens(write_lines(tmp_path / "data.jsonl", rows))


def test_A01_rows_of_nested_parquet_have_no_invented_keys(tmp_path: Path) -> None:
    rows = arrow_ready(case_file("A01", "twin_no_bom.jsonl"))
    path = write(tmp_path / "data.parquet", messages=[row["messages"] for row in rows])
    assert [row.value for row in read_rows(path) if isinstance(row, Row)] == rows


def test_plain_columns_of_the_other_formats(tmp_path: Path) -> None:
    path = write(tmp_path / "data.parquet", prompt=["a", None], completion=["b", "c"], extra=[1.5, None])
    dataset = load(path, format=DatasetFormat.PROMPT_COMPLETION, bad_row_policy=BadRowPolicy.SKIP)
    assert [whole_text(sample) for sample in dataset.samples] == ["ab<|im_end|>"]
    assert dropped_codes(dataset) == [(2, RowCode.MISSING_PROMPT)]


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(pa.array(["a", "b"]).dictionary_encode(), id="dictionary"),
        pytest.param(pa.array(["a", "b"], pa.large_string()), id="large string"),
    ],
)
def test_every_kind_of_text_column_is_text(tmp_path: Path, column: pa.Array) -> None:
    path = write(tmp_path / "data.parquet", text=column)
    assert [whole_text(sample) for sample in load(path, format=DatasetFormat.TEXT).samples] == [
        "a<|im_end|>",
        "b<|im_end|>",
    ]


def test_maps_are_objects(tmp_path: Path) -> None:
    arguments = pa.map_(pa.string(), pa.int64())
    call = pa.struct([("name", pa.string()), ("arguments", arguments)])
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(call))])
    row = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [{"name": "f", "arguments": [("x", 1), ("y", None)]}]},
    ]
    path = write(tmp_path / "data.parquet", messages=pa.array([row], pa.list_(message)))
    [sample] = load(path).samples
    assert '{"name": "f", "arguments": {"x": 1}}' in whole_text(sample)


@pytest.mark.parametrize(
    "cell, want",
    [
        pytest.param('[{"role": ', RowCode.INVALID_JSON, id="text that is no JSON"),
        pytest.param('[{"role": "user", "content": "\\ud800"}]', RowCode.LONE_SURROGATE, id="half of a pair"),
        pytest.param("[" * 100 + "]" * 100, RowCode.NESTED_TOO_DEEP, id="deep nesting"),
    ],
)
def test_bad_json_text_is_a_row_with_a_code(tmp_path: Path, cell: str, want: RowCode) -> None:
    good = json.dumps(chat("q", "a")["messages"])
    path = write(tmp_path / "data.parquet", messages=[good, cell])
    assert codes(path) == [(2, want)]


def test_bytes_that_are_not_utf8_are_a_row_with_a_code(tmp_path: Path) -> None:
    column = pa.StringArray.from_buffers(
        2, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.array([b"a\xff"], pa.binary()).buffers()[2]
    )
    assert codes(write(tmp_path / "data.parquet", text=column)) == [(2, RowCode.NOT_UTF8)]


def test_numbers_that_json_lacks_are_a_row_with_a_code(tmp_path: Path) -> None:
    path = write(tmp_path / "data.parquet", text=["a", "b"], tools=[{"x": 1.0}, {"x": float("nan")}])
    assert codes(path) == [(2, RowCode.INVALID_NUMBER)]


def test_a_file_without_known_columns_has_its_rows_counted(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="3 rows read, 3 dropped: MissingMessages 3") as caught:
        load(write(tmp_path / "data.parquet", id=[1, 2, 3]))
    assert caught.value.reason == Reason.DATASET_EMPTY


@pytest.mark.parametrize(
    "columns, words",
    [
        ({"text": [b"a"]}, "binary"),
        ({"text": [datetime(2026, 1, 1)]}, "timestamp"),
        ({"messages": [[{"when": datetime(2026, 1, 1)}]]}, "timestamp"),
    ],
)
def test_types_that_json_lacks_are_refused_by_column(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusalError, match=words) as caught:
        list(read_rows(write(tmp_path / "data.parquet", **columns)))
    assert caught.value.reason == Reason.INVALID_DATASET


def test_a_cut_or_damaged_file_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.parquet", text=[f"row {index}" for index in range(1000)]).read_bytes()
    for name, data in {
        "cut": whole[:-10],
        "head": whole[:4],
        "footer": whole[:-40] + b"\xff" * 32 + whole[-8:],
        "huge footer": whole[:-8] + b"\xff\xff\xff\x7f" + b"PAR1",
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(RefusalError, match="damaged or unreadable Parquet") as caught:
            list(read_rows(path))
        assert caught.value.reason == Reason.INVALID_DATASET


def test_a_file_with_changed_bytes_is_read_or_refused_and_nothing_else(tmp_path: Path) -> None:
    rows = [chat("q", "a")["messages"] for _ in range(20)]
    whole = write(tmp_path / "whole.parquet", messages=rows, text=["é" * index for index in range(20)]).read_bytes()
    chance = random.Random(0)
    path = tmp_path / "changed.parquet"
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        path.write_bytes(data)
        try:
            list(read_rows(path))
        except RefusalError as error:
            refused += error.reason == Reason.INVALID_DATASET
    assert refused > 100


def test_a_column_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.parquet", textcolumn=["a"]).read_bytes()
    path = tmp_path / "data.parquet"
    path.write_bytes(whole.replace(b"textcolumn", b"textcolum\xff"))
    with pytest.raises(RefusalError, match="damaged"):
        list(read_rows(path))


def test_limits_on_rows_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "data.parquet", text=["a" * 1000] * 100)
    monkeypatch.setattr(parquet, "MAX_ROWS", 99)
    with pytest.raises(RefusalError, match="at most 99"):
        list(read_rows(path))
    monkeypatch.setattr(parquet, "MAX_ROWS", 100)
    monkeypatch.setattr(parquet, "MAX_UNPACKED_BYTES", 50)
    with pytest.raises(RefusalError, match="at most 50 are read"):
        list(read_rows(path))
    monkeypatch.setattr(parquet, "MAX_UNPACKED_BYTES", 10**9)
    monkeypatch.setattr(parquet, "MAX_ROW_BYTES", 999)
    assert len(codes(path)) == 100


def test_rows_are_numbered_over_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"text": [str(index) for index in range(1000)]}), path, row_group_size=7)
    assert [row.number for row in read_rows(path) if isinstance(row, Row)] == list(range(1, 1001))


def test_jsonl_of_messages_as_text_stays_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [{"messages": "[]"}])
    with pytest.raises(RefusalError, match="MessagesNotAList"):
        load(path)
