from __future__ import annotations

import logging
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from builders import chat_templates
from builders.cases import case_file
from builders.intake import chat, load, supervised_text, tiny_tokenizer, write_lines
from builders.tiny_base import build_tiny_tokenizer
from multigraft.api.adapter_job import BadRowPolicy, DatasetFormat, LongSamplePolicy
from multigraft_trainer.intake import cache
from multigraft_trainer.intake import load as load_module
from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.samples import TokenisedDataset
from multigraft_trainer.intake.tokenizer import IntakeTokenizer


def assert_equal(got: TokenisedDataset, want: TokenisedDataset) -> None:
    assert got.report == want.report
    assert got.fingerprint == want.fingerprint
    for one, other in zip(got.samples, want.samples, strict=True):
        assert one.row == other.row
        assert one.input_ids.dtype == other.input_ids.dtype
        assert one.supervised.dtype == other.supervised.dtype
        assert one.input_ids.tolist() == other.input_ids.tolist()
        assert one.supervised.tolist() == other.supervised.tolist()


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make reading rows fail, so that only the cache can answer."""

    def fail(path: Path) -> None:
        raise AssertionError(f"{path.name} was read")

    monkeypatch.setattr(load_module, "read_rows", fail)
    return monkeypatch


def test_a_second_load_comes_from_the_cache_and_is_the_same(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = case_file("A07", "data.jsonl")
    first = load(path, cache_dir=tmp_path, bad_row_policy=BadRowPolicy.SKIP)
    assert len(first.report.dropped) == 6
    request.getfixturevalue("no_reading")
    assert_equal(load(path, cache_dir=tmp_path, bad_row_policy=BadRowPolicy.SKIP), first)


def test_the_same_content_under_another_name_is_the_same_entry(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    first = load(write_lines(tmp_path / "a.jsonl", [chat("q", "a")]), cache_dir=tmp_path / "cache")
    other = write_lines(tmp_path / "b.jsonl", [chat("q", "a")])
    request.getfixturevalue("no_reading")
    assert_equal(load(other, cache_dir=tmp_path / "cache"), first)


def test_A18_a_change_in_place_with_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [chat("q", "old answer")])
    first = load(path, cache_dir=tmp_path / "cache")
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"old", b"new"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    second = load(path, cache_dir=tmp_path / "cache")
    assert supervised_text(first.samples[0]).startswith("old")
    assert supervised_text(second.samples[0]).startswith("new")
    assert first.fingerprint != second.fingerprint


def test_A18_another_tokenizer_or_template_tokenises_anew(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [chat("q", "a")])
    fast = build_tiny_tokenizer()
    fast.add_tokens(["q"])
    added = IntakeTokenizer.from_fast(fast)
    tokenizers = [tiny_tokenizer(), tiny_tokenizer(chat_templates.CHATML), added]
    datasets = [load(path, tokenizer=tokenizer, cache_dir=tmp_path / "cache") for tokenizer in tokenizers[:2]]
    assert len({tokenizer.sha256 for tokenizer in tokenizers}) == 3
    assert datasets[0].fingerprint != datasets[1].fingerprint
    assert datasets[0].samples[0].num_tokens != datasets[1].samples[0].num_tokens


def test_the_fingerprint_is_of_what_is_trained_and_not_of_how_it_was_read(tmp_path: Path) -> None:
    rows = [chat("q", "a"), chat("q", "b")]
    plain = write_lines(tmp_path / "a.jsonl", rows)
    spaced = write_lines(tmp_path / "b.jsonl", ["", *rows, {}])
    first = load(plain)
    assert load(spaced, bad_row_policy=BadRowPolicy.SKIP, max_seq_length=999).fingerprint == first.fingerprint
    assert load(write_lines(tmp_path / "c.jsonl", rows[::-1])).fingerprint != first.fingerprint
    weighted = chat("q", "b", "q", "b")
    weighted["messages"][1]["weight"] = 0
    masks = [load(write_lines(tmp_path / "d.jsonl", [row])).fingerprint for row in (chat("q", "b", "q", "b"), weighted)]
    assert masks[0] != masks[1]


def test_A18_every_part_of_the_key_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    options = IntakeOptions()
    base = {"content_sha256": "c", "tokenizer_sha256": "t", "options": options, "embedding_rows": 512}

    def build(**changed: object) -> str:
        return cache.build_key(**{**base, **changed})  # type: ignore[arg-type]

    changed = [
        build(),
        build(content_sha256="d"),
        build(tokenizer_sha256="u"),
        build(embedding_rows=513),
        build(options=replace(options, format=DatasetFormat.TEXT)),
        build(options=replace(options, bad_row_policy=BadRowPolicy.SKIP)),
        build(options=replace(options, long_sample_policy=LongSamplePolicy.SKIP)),
        build(options=replace(options, max_seq_length=2047)),
        build(options=replace(options, render_date=datetime(2025, 1, 1))),
    ]
    monkeypatch.setattr(cache, "_code_version", lambda: "other code")
    changed.append(build())
    assert len(set(changed)) == len(changed)
    assert all(len(key) == 64 for key in changed)


@pytest.mark.parametrize(
    "damage", ["empty", "cut", "flipped in the tensors", "flipped in the header", "text", "another"]
)
def test_a_damaged_entry_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    path = case_file("A20", "data.jsonl")
    first = load(path, cache_dir=tmp_path)
    [entry] = tmp_path.glob("*.safetensors")
    whole = bytearray(entry.read_bytes())
    match damage:
        case "empty":
            entry.write_bytes(b"")
        case "cut":
            entry.write_bytes(whole[: len(whole) // 2])
        case "flipped in the tensors":
            whole[-5] ^= 1
            entry.write_bytes(whole)
        case "flipped in the header":
            place = whole.index(b"num_trained")
            whole[whole.index(b"8", place)] = ord("7")
            entry.write_bytes(whole)
        case "text":
            entry.write_text("not a tensor file")
        case "another":
            load(case_file("A12", "data.jsonl"), cache_dir=tmp_path / "other")
            [other] = (tmp_path / "other").glob("*.safetensors")
            entry.write_bytes(other.read_bytes())
    with caplog.at_level(logging.WARNING):
        assert_equal(load(path, cache_dir=tmp_path), first)
    assert "damaged" in caplog.text
    assert entry.stat().st_size == len(whole)


def test_a_cache_that_cannot_be_written_does_not_fail_the_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    in_the_way = tmp_path / "cache"
    in_the_way.write_text("a file")
    assert load(case_file("A20", "data.jsonl"), cache_dir=in_the_way).report.num_trained == 8
    assert "not cached" in caplog.text


def test_an_entry_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", no_space)
    load(case_file("A20", "data.jsonl"), cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
