import json

import pytest

from builders.quickstart import load_example_module

texts = load_example_module("texts")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    texts.write_datasets(folder)
    return folder


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def answers(row):
    if "text" in row:
        return [row["text"]]
    if "completion" in row:
        return [row["completion"]]
    return [message["content"] for message in row["messages"] if message["role"] == "assistant"][:1]


@pytest.mark.parametrize("name", texts.DATASETS)
def test_a_dataset_has_its_rows_and_no_heldout_answer_was_trained(folder, name):
    train, heldout = read(folder / f"{name}.jsonl"), read(folder / f"{name}.heldout.jsonl")
    assert (len(train), len(heldout)) == (texts.NUM_TRAIN_ROWS, texts.NUM_HELDOUT_ROWS)
    seen = [answer for row in train + heldout for answer in answers(row)]
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("name", texts.DATASETS)
def test_rows_are_short_enough_for_two_cpu_cores(folder, name):
    lengths = [len(json.dumps(row, ensure_ascii=False)) for row in read(folder / f"{name}.jsonl")]
    assert max(lengths) < 800
    assert min(lengths) > 30


def test_the_formats_are_all_used(folder):
    keys = {name: set(read(folder / f"{name}.jsonl")[0]) for name in texts.DATASETS}
    assert keys == {
        "stdlib-summaries": {"prompt", "completion"},
        "api-helper": {"messages"},
        "error-codes": {"messages"},
        "unicode-names": {"text"},
    }


def test_a_second_writing_gives_the_same_bytes(folder, tmp_path):
    texts.write_datasets(tmp_path)
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_rows_are_chosen_by_content_and_not_by_the_order_found():
    candidates = [(f"answer {i}", {"text": f"row {i}"}) for i in range(50)]
    forward, backward = texts.pick_rows(iter(candidates), 10), texts.pick_rows(iter(candidates[::-1]), 10)
    assert forward == backward
    assert len(forward) == 10


def test_a_repeated_answer_gives_one_row():
    assert texts.pick_rows(iter([("same", {"text": "a"}), ("same", {"text": "b"})]), 5) == [{"text": "a"}]


def test_too_few_texts_are_an_error_that_says_how_many(monkeypatch, tmp_path):
    monkeypatch.setitem(texts.DATASETS, "stdlib-summaries", lambda: iter([("a", {"text": "a"})]))
    with pytest.raises(ValueError, match="dataset stdlib-summaries: 1 rows found, want 324"):
        texts.write_datasets(tmp_path)
