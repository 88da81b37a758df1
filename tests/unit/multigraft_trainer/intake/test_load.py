from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors

from builders.cases import case_file
from builders.intake import (
    chat,
    decode,
    dropped_codes,
    load,
    supervised_text,
    tiny_tokenizer,
    whole_text,
    write_lines,
)
from builders.tiny_base import BOS_ID, EOS_ID, VOCAB_SIZE, build_tiny_tokenizer
from multigraft.api.adapter_job import BadRowPolicy, Dataset, DatasetFormat, LongSamplePolicy, Training
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake.codes import RowCode
from multigraft_trainer.intake.load import load_dataset
from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.samples import TokenisedDataset
from multigraft_trainer.intake.tokenizer import IntakeTokenizer

SKIP = BadRowPolicy.SKIP
CHAT, PAIR, TEXT = DatasetFormat.CONVERSATIONAL, DatasetFormat.PROMPT_COMPLETION, DatasetFormat.TEXT
END = "<|im_end|>"


def refusal(path: Path, **options: Any) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        load(path, **options)
    assert len(str(caught.value)) < 500
    return caught.value


def learnt(dataset: TokenisedDataset) -> dict[int, str]:
    return {sample.row: supervised_text(sample) for sample in dataset.samples}


def with_bos(template: str | None = None) -> tuple[IntakeTokenizer, Any]:
    """Build a tokenizer that puts bos before every text."""
    fast = build_tiny_tokenizer(**({"chat_template": template} if template else {}))
    fast.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", BOS_ID)]
    )
    return IntakeTokenizer.from_fast(fast), fast


# ---- bad rows


def test_A01_token_ids_are_the_same_with_and_without_the_mark() -> None:
    got, want = (load(case_file("A01", name)) for name in ("data.jsonl", "twin_no_bom.jsonl"))
    for one, other in zip(got.samples, want.samples, strict=True):
        assert one.input_ids.tolist() == other.input_ids.tolist()


def test_A02_token_ids_are_the_same_with_either_line_end() -> None:
    got, want = (load(case_file("A02", name)) for name in ("data.jsonl", "lf_twin.jsonl"))
    assert [s.input_ids.tolist() for s in got.samples] == [s.input_ids.tolist() for s in want.samples]
    assert all("\r" not in whole_text(sample) for sample in got.samples)
    assert got.report.num_rows == 4


@pytest.mark.parametrize("policy", list(BadRowPolicy))
@pytest.mark.parametrize("name", ["array", "pretty", "pyquotes", "cut_last_line", "notobject", "trailing_comma"])
def test_A04_no_bad_row_policy_forgives_another_container(name: str, policy: BadRowPolicy) -> None:
    assert refusal(case_file("A04", f"{name}.jsonl"), bad_row_policy=policy).reason == Reason.INVALID_DATASET


def test_A07_each_bad_row_is_dropped_with_its_number_and_own_code() -> None:
    dataset = load(case_file("A07", "data.jsonl"), bad_row_policy=SKIP)
    assert learnt(dataset) == {1: f"answer 1{END}", 2: f"answer 2{END}"}
    assert dropped_codes(dataset) == [
        (3, RowCode.MISSING_MESSAGES),
        (4, RowCode.NULL_MESSAGES),
        (5, RowCode.EMPTY_MESSAGES),
        (6, RowCode.MISSING_CONTENT),
        (7, RowCode.MISSING_ROLE),
        (8, RowCode.MESSAGES_NOT_A_LIST),
    ]
    assert dataset.report.num_rows == dataset.report.num_trained + len(dataset.report.dropped) == 8


def test_A07_the_policy_fail_refuses_with_counts_and_row_numbers() -> None:
    error = refusal(case_file("A07", "data.jsonl"))
    assert error.reason == Reason.INVALID_DATASET
    assert "6 of 8 rows cannot be used (badRowPolicy Fail)" in error.message
    for code, row in (("MissingMessages", 3), ("NullMessages", 4), ("EmptyMessages", 5), ("MissingContent", 6)):
        assert f"{code} 1 (row {row})" in error.message
    assert "MissingRole 1 (row 7), MessagesNotAList 1 (row 8)" in error.message


def test_A08_the_order_of_roles_has_one_stable_rule() -> None:
    dataset = load(case_file("A08", "data.jsonl"), bad_row_policy=SKIP)
    assert learnt(dataset) == {
        1: f"I speak first{END}fine{END}",
        2: f"b{END}c{END}",
        4: f"b{END}",
        6: f"b{END}",
    }
    assert dropped_codes(dataset) == [
        (3, RowCode.NO_ASSISTANT_TURN),
        (5, RowCode.UNKNOWN_ROLE),
        (7, RowCode.UNKNOWN_ROLE),
    ]
    messages = {row.row: row.message for row in dataset.report.dropped}
    assert "'critic'" in messages[5]
    assert "'User'" in messages[7]
    assert all("system, user, assistant, tool" in messages[row] for row in (5, 7))


def test_A09_blank_tools_are_none_and_broken_ones_are_found_before_training() -> None:
    error = refusal(case_file("A09", "data.jsonl"))
    assert "1 of 5 rows" in error.message
    assert "InvalidTools 1 (row 4)" in error.message
    dataset = load(case_file("A09", "data.jsonl"), bad_row_policy=SKIP)
    assert learnt(dataset) == {row: f"a{row}{END}" for row in (1, 2, 3, 5)}


def test_A10_every_style_is_mapped_or_refused_by_row(tmp_path: Path) -> None:
    dataset = load(case_file("A10", "data.jsonl"), bad_row_policy=SKIP)
    twin = load(write_lines(tmp_path / "twin.jsonl", [chat(f"q{n}", f"a{n}") for n in (1, 2, 3)]))
    assert [s.input_ids.tolist() for s in dataset.samples] == [s.input_ids.tolist() for s in twin.samples]
    assert dropped_codes(dataset) == [(row, RowCode.MISSING_MESSAGES) for row in (4, 5, 6)]
    assert all(sample.num_tokens for sample in dataset.samples)
    message = refusal(case_file("A10", "data.jsonl")).message
    assert "(rows 4, 5, 6)" in message
    assert "PromptCompletion" in message


@pytest.mark.parametrize("policy", list(BadRowPolicy))
@pytest.mark.parametrize(
    "name, words",
    [
        ("empty.jsonl", "0 rows read"),
        ("blank.jsonl", "0 rows read"),
        ("bom_only.jsonl", "0 rows read"),
        ("allbad.jsonl", "2 rows read, 2 dropped: MissingMessages 2 (rows 1, 2)"),
    ],
)
def test_A11_a_file_without_a_usable_row_is_dataset_empty_with_counts(
    name: str, words: str, policy: BadRowPolicy
) -> None:
    error = refusal(case_file("A11", name), bad_row_policy=policy)
    assert error.reason == Reason.DATASET_EMPTY
    assert words in error.message


def test_G15_all_rows_dropped_says_why_by_code(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{}, {"messages": []}, {}, chat("q" * 100, "a")]
    path = write_lines(tmp_path / "data.jsonl", rows)
    error = refusal(path, bad_row_policy=SKIP, max_seq_length=50)
    assert error.reason == Reason.DATASET_EMPTY
    assert "4 rows read, 4 dropped" in error.message
    assert "MissingMessages 2 (rows 1, 3), EmptyMessages 1 (row 2), NoSupervisedTokens 1 (row 4)" in error.message


def test_A12_fewer_rows_than_a_batch_are_all_there() -> None:
    assert load(case_file("A12", "data.jsonl")).report.num_trained == 3


def test_A20_equal_rows_are_not_merged() -> None:
    dataset = load(case_file("A20", "data.jsonl"))
    assert [sample.row for sample in dataset.samples] == list(range(1, 9))
    assert dataset.samples[1].input_ids.tolist() == dataset.samples[4].input_ids.tolist()


# ---- masks and special tokens


def test_A14_every_row_of_a_template_without_marks_has_trainable_tokens() -> None:
    assert "generation %" not in build_tiny_tokenizer().chat_template
    dataset = load(case_file("A21", "data.jsonl"))
    assert all(sample.num_supervised > 0 for sample in dataset.samples)


BOS_TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}"


def test_A15_bos_is_there_once_where_template_and_tokenizer_both_add_it(tmp_path: Path) -> None:
    tokenizer, fast = with_bos(BOS_TEMPLATE)
    assert fast("x").input_ids[0] == BOS_ID
    row = chat("hi", "yo")
    [sample] = load(write_lines(tmp_path / "data.jsonl", [row]), tokenizer=tokenizer).samples
    assert sample.input_ids.tolist() == fast.apply_chat_template(row["messages"], return_dict=False)
    assert np.flatnonzero(sample.input_ids == BOS_ID).tolist() == [0]


@pytest.mark.parametrize("text", ["hi", "<bos>hi"], ids=["plain", "the text begins with bos itself"])
def test_A15_bos_is_there_once_in_plain_text(tmp_path: Path, text: str) -> None:
    tokenizer, _ = with_bos()
    [sample] = load(write_lines(tmp_path / "a", [{"text": text}]), tokenizer=tokenizer, format=TEXT).samples
    assert decode(sample.input_ids.tolist()) == f"<bos>hi{END}"
    assert sample.supervised.tolist() == [False, True, True, True]
    row = {"prompt": text, "completion": "yo"}
    [sample] = load(write_lines(tmp_path / "b", [row]), tokenizer=tokenizer, format=PAIR).samples
    assert decode(sample.input_ids.tolist()) == f"<bos>hiyo{END}"
    assert supervised_text(sample) == f"yo{END}"


@pytest.mark.parametrize("side", ["left", "right"])
def test_A16_the_end_of_each_answer_is_learnt_though_pad_is_eos(side: str) -> None:
    fast = build_tiny_tokenizer(pad_is_eos=True)
    fast.padding_side = side
    fast(["a", "a longer one"], padding=True)  # leaves the tokenizer set to pad
    patch = json.loads(case_file("A16", "tokenizer_config_patch.json").read_text())
    assert patch["pad_token"] == patch["eos_token"] == fast.pad_token == fast.eos_token
    dataset = load(case_file("A16", "data.jsonl"), tokenizer=IntakeTokenizer.from_fast(fast))
    for sample in dataset.samples:
        assert (sample.input_ids[sample.supervised] == EOS_ID).sum() == 1
        assert sample.input_ids[sample.supervised][-1] == EOS_ID
        assert sample.num_tokens < 130
    assert [sample.input_ids.tolist() for sample in dataset.samples] == [
        sample.input_ids.tolist() for sample in load(case_file("A16", "data.jsonl")).samples
    ]


def test_A21_calls_and_answers_are_learnt_tool_turns_are_not() -> None:
    dataset = load(case_file("A21", "data.jsonl"))
    texts = learnt(dataset)
    call = '<tool_call>{"name": "%s", "arguments": %s}</tool_call>'
    first = call % ("open_ticket", '{"title": "late", "tags": ["a", "b"], "deep": {"x": {"y": [1, {"z": 2}]}}}')
    second = call % ("find_order", '{"order_id": 17}')
    assert texts == {1: f"{first}{second}{END}Both done.{END}", 2: END, 3: f"😀 e\u0301 😀{END}"}
    whole = whole_text(dataset.samples[0])
    assert "None" not in whole
    assert whole.count("null") == 1  # the tool's own answer
    assert "\u200b\ufeff" in whole_text(dataset.samples[2])
    assert dataset.report.num_trained == 3


def test_C04_an_empty_answer_teaches_its_end_alone() -> None:
    dataset = load(case_file("C04", "data.jsonl"))
    assert [sample.num_supervised for sample in dataset.samples] == [1, 4, 1, 5]


# ---- lengths


def test_A19_odd_lengths_are_all_trained(tmp_path: Path) -> None:
    rows = [{"prompt": "p" * n, "completion": "c" * n} for n in range(1, 11)]
    dataset = load(write_lines(tmp_path / "data.jsonl", rows), format=PAIR)
    assert [sample.num_tokens for sample in dataset.samples] == [2 * n + 1 for n in range(1, 11)]
    assert [sample.num_supervised for sample in dataset.samples] == [n + 1 for n in range(1, 11)]
    assert (dataset.report.num_rows, dataset.report.num_trained, dataset.report.dropped) == (10, 10, ())


def rows_of_lengths(path: Path, case: str) -> tuple[Path, int]:
    """Write text rows whose lengths in tokens, the end included, are those of the case."""
    spec = json.loads(case_file(case, "lengths.json").read_text())
    texts = [{"text": "x" * (length - 1)} for length in spec["adapters"]["a"]]
    return write_lines(path, [text if text["text"] else {"text": END} for text in texts]), spec["capacity"]


@pytest.mark.parametrize(
    "case, policy, want, num_truncated, num_dropped",
    [
        ("G01", LongSamplePolicy.TRUNCATE, [10, 256, 20], 1, 0),
        ("G01", LongSamplePolicy.SKIP, [10, 20], 0, 1),
        ("G02", LongSamplePolicy.TRUNCATE, [60, 60, 60, 60], 3, 1),
        ("G02", LongSamplePolicy.SKIP, [60], 0, 4),
    ],
)
def test_G01_G02_long_samples_are_cut_or_skipped_and_counted(
    tmp_path: Path, case: str, policy: LongSamplePolicy, want: list[int], num_truncated: int, num_dropped: int
) -> None:
    path, capacity = rows_of_lengths(tmp_path / "data.jsonl", case)
    dataset = load(path, format=TEXT, long_sample_policy=policy, bad_row_policy=SKIP, max_seq_length=capacity)
    assert [sample.num_tokens for sample in dataset.samples] == want
    assert dataset.report.num_truncated == num_truncated
    assert len(dataset.report.dropped) == num_dropped  # in G02 the row of one token is one of them: it has no target


def test_G02_G13_the_policy_fail_names_rows_lengths_and_the_limit_and_no_text(tmp_path: Path) -> None:
    path, capacity = rows_of_lengths(tmp_path / "data.jsonl", "G02")
    error = refusal(path, format=TEXT, long_sample_policy=LongSamplePolicy.FAIL, max_seq_length=capacity)
    assert error.reason == Reason.INVALID_DATASET
    for row, length in ((2, 61), (3, 120), (4, 121)):
        assert f"row {row}: {length} tokens, maxSeqLength is 60" in error.message
    assert "xxx" not in error.message


def test_skipped_long_samples_do_not_count_as_bad_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [{"text": "x" * 100}, {"text": "x"}])
    dataset = load(path, format=TEXT, long_sample_policy=LongSamplePolicy.SKIP, max_seq_length=50)
    assert dropped_codes(dataset) == [(1, RowCode.SAMPLE_TOO_LONG)]


def test_a_row_whose_answer_is_cut_off_is_a_bad_row(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [chat("q" * 200, "a"), chat("q", "a")])
    error = refusal(path, max_seq_length=64)
    assert "NoSupervisedTokens 1 (row 1)" in error.message
    assert "none of the first 64 of" in error.message
    dataset = load(path, max_seq_length=64, bad_row_policy=SKIP)
    assert dropped_codes(dataset) == [(1, RowCode.NO_SUPERVISED_TOKENS)]


def test_a_cut_answer_does_not_end(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [{"prompt": "p", "completion": "c" * 100}])
    [sample] = load(path, format=PAIR, max_seq_length=20).samples
    assert supervised_text(sample) == "c" * 19
    assert not sample.supervised[0]


@pytest.mark.parametrize("policy", list(LongSamplePolicy))
def test_a_text_far_beyond_the_limit_gives_the_same_tokens_without_being_tokenised_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: LongSamplePolicy
) -> None:
    path = write_lines(tmp_path / "data.jsonl", [{"text": "ab" * 50_000}, {"text": "a"}])
    options = {"format": TEXT, "max_seq_length": 10, "long_sample_policy": policy}
    if policy is LongSamplePolicy.TRUNCATE:
        assert whole_text(load(path, **options).samples[0]) == "ababababab"
    elif policy is LongSamplePolicy.SKIP:
        assert dropped_codes(load(path, **options)) == [(1, RowCode.SAMPLE_TOO_LONG)]
    else:
        assert "maxSeqLength is 10" in refusal(path, **options).message


def test_a_text_whose_beginning_gives_few_tokens_is_tokenised_whole(tmp_path: Path) -> None:
    fast = build_tiny_tokenizer()
    fast.add_tokens(["-" * 400])
    tokenizer = IntakeTokenizer.from_fast(fast)
    path = write_lines(tmp_path / "data.jsonl", [{"text": "-" * 400 * 30 + "x"}])
    with pytest.raises(RefusalError, match="id 512"):
        load(path, format=TEXT, max_seq_length=8, tokenizer=tokenizer)
    dataset = load_dataset(
        path, options=IntakeOptions(format=TEXT, max_seq_length=40), tokenizer=tokenizer, embedding_rows=513
    )
    assert dataset.samples[0].num_tokens == 32
    assert dataset.report.num_truncated == 0


# ---- the embedding table


def added_token_tokenizer() -> IntakeTokenizer:
    fast = build_tiny_tokenizer()
    fast.add_tokens(["<extra>"])
    assert fast.convert_tokens_to_ids("<extra>") == VOCAB_SIZE
    return IntakeTokenizer.from_fast(fast)


@pytest.mark.parametrize("policy", list(BadRowPolicy))
def test_A17_an_id_beyond_the_embedding_is_refused_with_token_id_size_and_row(
    tmp_path: Path, policy: BadRowPolicy
) -> None:
    path = write_lines(tmp_path / "data.jsonl", [chat("q", "a"), chat("use <extra>", "a"), chat("<extra>", "a")])
    error = refusal(path, tokenizer=added_token_tokenizer(), bad_row_policy=policy)
    assert error.reason == Reason.TOKEN_OUT_OF_RANGE
    for words in ("row 2:", "'<extra>'", "id 512", "512 rows (ids 0 to 511)", "2 rows"):
        assert words in error.message


def test_A17_an_unused_added_token_does_no_harm(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [chat("q" * 60, "a"), chat("q", "a" * 90 + "<extra>")])
    dataset = load(path, tokenizer=added_token_tokenizer(), max_seq_length=100, bad_row_policy=SKIP)
    assert dataset.report.num_trained == 2
    assert max(sample.input_ids.max() for sample in dataset.samples) < VOCAB_SIZE


# ---- K01


def test_K01_no_side_file_is_ever_opened(tmp_path: Path) -> None:
    for name in ("metadata.jsonl", "ok.txt"):
        (tmp_path / name).write_bytes(case_file("K01", name).read_bytes())
    (tmp_path / "link.txt").symlink_to("/etc/hostname")
    opened: list[str] = []
    recording = True

    def spy(event: str, arguments: tuple[Any, ...]) -> None:
        if recording and event == "open":
            opened.append(str(arguments[0]))

    load(write_lines(tmp_path / "warm-up.jsonl", [chat("q", "a")]))
    sys.addaudithook(spy)
    dataset = load(tmp_path / "metadata.jsonl")
    recording = False
    assert dataset.report.num_trained == 5
    assert any(name.endswith("metadata.jsonl") for name in opened)
    for word in ("passwd", "shadow", "outside", "link.txt", "ok.txt", "hostname"):
        assert not [name for name in opened if word in name]


# ---- the whole


def test_options_come_from_the_spec() -> None:
    dataset = Dataset(storage_uri="x.jsonl", format=TEXT, bad_row_policy=SKIP, long_sample_policy=LongSamplePolicy.FAIL)
    training = Training(max_steps=1, max_seq_length=77)
    got = IntakeOptions.from_spec(dataset, training)
    assert (got.format, got.bad_row_policy, got.long_sample_policy, got.max_seq_length) == (
        TEXT,
        SKIP,
        LongSamplePolicy.FAIL,
        77,
    )


def test_text_is_learnt_but_for_its_first_token(tmp_path: Path) -> None:
    [sample] = load(write_lines(tmp_path / "data.jsonl", [{"text": "abc"}]), format=TEXT).samples
    assert whole_text(sample) == f"abc{END}"
    assert sample.supervised.tolist() == [False, True, True, True]
    assert sample.input_ids.dtype == np.int32
    assert sample.supervised.dtype == np.bool_


def test_a_prompt_in_two_forms_in_one_file_keeps_the_order_of_rows(tmp_path: Path) -> None:
    messages = {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "b"}]}
    rows = [messages, {"prompt": "p", "completion": "a"}] * 3
    dataset = load(write_lines(tmp_path / "data.jsonl", rows), format=PAIR)
    assert learnt(dataset) == {row: (f"b{END}" if row % 2 else f"a{END}") for row in range(1, 7)}
    assert [sample.row for sample in dataset.samples] == list(range(1, 7))


def test_gzip_gives_what_the_plain_file_gives(tmp_path: Path) -> None:
    plain = case_file("A20", "data.jsonl")
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    assert [s.input_ids.tolist() for s in load(path).samples] == [s.input_ids.tolist() for s in load(plain).samples]


def test_conversations_need_a_chat_template_and_texts_an_end_token(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "chat.jsonl", [chat("q", "a")])
    error = refusal(path, tokenizer=tiny_tokenizer(None))
    assert error.reason == Reason.INVALID_CHAT_TEMPLATE
    fast = build_tiny_tokenizer()
    fast.eos_token = None
    path = write_lines(tmp_path / "text.jsonl", [{"text": "a"}])
    error = refusal(path, format=TEXT, tokenizer=IntakeTokenizer.from_fast(fast))
    assert error.reason == Reason.BASE_MODEL_INVALID
    assert "eos" in error.message


def test_A14_a_template_whose_turns_cannot_be_found_fails_whatever_the_policy(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [chat("q", "a"), chat("q", "a", "q", "a", "q", "a")])
    counted = "{% for m in messages %}{{ m.role }}{{ m.content }}{{ NUMBER }}{% endfor %}"
    always = counted.replace("NUMBER", "messages | length")
    at_length = counted.replace("NUMBER", "[messages | length, 4] | max")
    for template, where in ((always, ("",)), (at_length, ("'data.jsonl'", "row 2"))):
        error = refusal(path, tokenizer=tiny_tokenizer(template), bad_row_policy=SKIP)
        assert error.reason == Reason.INVALID_CHAT_TEMPLATE
        for words in ("{% generation %}", *where):
            assert words in error.message


def test_a_file_that_is_changed_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from multigraft_trainer.intake import load as load_module

    path = write_lines(tmp_path / "data.jsonl", [chat("q", "a")])
    real = load_module.read_rows

    def read_and_touch(given: Path) -> Any:
        yield from real(given)
        os.utime(given, ns=(1, 1))

    monkeypatch.setattr(load_module, "read_rows", read_and_touch)
    assert "was changed while it was read" in refusal(path).message


def test_a_missing_file_and_a_folder_are_not_found(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.jsonl", tmp_path / "missing" / "data.jsonl"):
        assert refusal(path).reason == Reason.DATASET_NOT_FOUND


BAD_VALUES = st.sampled_from(
    [None, "", "text", 7, [], {}, [{}], [{"role": "user"}], [{"role": "x" * 50, "content": "secret"}], [None]]
)
ROWS = st.one_of(
    st.dictionaries(
        st.sampled_from(["messages", "conversations", "tools", "text", "prompt", "completion"]), BAD_VALUES
    ),
    st.tuples(st.text(max_size=5), st.text(max_size=40)).map(lambda pair: chat(*pair)),
)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(ROWS, min_size=1, max_size=12), policy=st.sampled_from(list(BadRowPolicy)))
def test_every_row_is_trained_or_dropped_or_the_one_error_counts_them(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], policy: BadRowPolicy
) -> None:
    path = write_lines(tmp_path_factory.mktemp("rows") / "data.jsonl", rows)
    refused: RefusalError | None = None
    try:
        dataset = load(path, bad_row_policy=policy, max_seq_length=60)
    except RefusalError as error:
        refused = error
    if refused is not None:
        assert refused.reason in {Reason.INVALID_DATASET, Reason.DATASET_EMPTY}
        assert f"{len(rows)} rows" in refused.message
        assert "secret" not in refused.message
        return
    assert dataset.report.num_rows == len(rows)
    trained, dropped = [s.row for s in dataset.samples], [row.row for row in dataset.report.dropped]
    assert sorted(trained + dropped) == list(range(1, len(rows) + 1))
    assert trained == sorted(trained)
    for sample in dataset.samples:
        assert sample.num_supervised > 0
        assert not sample.supervised[0]
        answer = rows[sample.row - 1]["messages"][1]["content"]
        assert f"{answer}{END}".startswith(supervised_text(sample))
