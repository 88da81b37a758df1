from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.jobs import make_job
from multigraft.api.reasons import Reason, RefusalError
from multigraft.dry_run.job_lengths import load_lengths

JOB = make_job("a")


@pytest.mark.parametrize("key", ["a", "team-a/a"])
def test_a_job_is_found_by_name_or_key(tmp_path: Path, key: str) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps({key: [3, 4], "other": "ignored"}))
    assert load_lengths(path, [JOB]) == {"team-a/a": [3, 4]}


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "Expecting value"),
        ("[1]", "got a list, want an object"),
        ("{}", "no entry 'team-a/a' or 'a'"),
        ('{"a": 3}', "want a list of one or more whole numbers above 0"),
        ('{"a": []}', "want a list of one or more"),
        ('{"a": [1, 0]}', "want a list of one or more"),
        ('{"a": [1.5]}', "want a list of one or more"),
        ('{"a": [true]}', "want a list of one or more"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(text)
    with pytest.raises(RefusalError, match=words) as caught:
        load_lengths(path, [JOB])
    assert caught.value.reason is Reason.INVALID_DATASET


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="No such file"):
        load_lengths(tmp_path / "none.json", [JOB])
