from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.small_adapter import SPEC, make_snapshot
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.peft_config import WEIGHTS_FILE
from multigraft_trainer.checkpoints.store import CheckpointStore

A, B = "default/a", "team/b.c"


def save(store: CheckpointStore, step: int, *jobs: str, ended: dict[str, dict[str, object]] | None = None) -> int:
    running = {job: store.save_job(make_snapshot(job, step)) for job in jobs}
    return store.save_boundary(running=running, ended=ended or {})


def list_pool(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "pool").iterdir())


def list_job(store: CheckpointStore, job: str) -> list[str]:
    return sorted(path.name for path in store.job_folder(job).iterdir())


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def test_a_first_start_has_no_boundary_and_makes_no_folder(tmp_path: Path) -> None:
    got = CheckpointStore(tmp_path / "root").load_newest_boundary()

    assert (got.boundary, got.passed_over) == (None, ())
    assert not (tmp_path / "root").exists()


def test_a_boundary_names_jobs_and_results(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    number = save(store, 1, A, B, ended={"default/done": {"state": "Failed", "loss": None}})

    got = CheckpointStore(tmp_path).load_newest_boundary()

    assert got.boundary is not None
    assert got.boundary.number == number == 0
    assert {job: ref.step for job, ref in got.boundary.running.items()} == {A: 1, B: 1}
    assert got.boundary.ended == {"default/done": {"state": "Failed", "loss": None}}


def test_the_newest_boundary_is_the_highest_number_not_the_last_text(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=3)
    for step in range(1, 12):
        save(store, step, A)

    got = store.load_newest_boundary()

    assert got.boundary is not None
    assert (got.boundary.number, got.boundary.running[A].step) == (10, 11)


@pytest.mark.parametrize("keep_last", [1, 2, 3])
def test_only_what_is_kept_or_named_stays(tmp_path: Path, keep_last: int) -> None:
    store = CheckpointStore(tmp_path, keep_last=keep_last)
    for step in range(1, 6):
        save(store, step, A, B)

    kept = range(5 - keep_last, 5)
    assert list_pool(tmp_path) == sorted(f"boundary-{n}.json" for n in kept)
    for job in (A, B):
        assert list_job(store, job) == [f"checkpoint-{n + 1}" for n in kept]


def test_pruning_never_takes_a_checkpoint_that_a_kept_boundary_names(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    save(store, 1, A)
    for step in (2, 3, 4, 5):
        store.save_job(make_snapshot(A, step))  # saves whose boundary was never written
    save(store, 6, A)

    assert list_job(store, A) == ["checkpoint-1", "checkpoint-5", "checkpoint-6"]


def test_a_damaged_boundary_is_set_aside_and_the_one_before_is_used(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, A)
    save(store, 2, A)
    damage(tmp_path / "pool" / "boundary-1.json")

    first, second = store.load_newest_boundary(), store.load_newest_boundary()

    assert first.boundary is not None
    assert first.boundary.running[A].step == 1
    assert [item.name for item in first.passed_over] == ["boundary-1.json"]
    assert "set aside as quarantined-boundary-1.json-1" in first.passed_over[0].why
    assert second.passed_over == ()
    assert save(store, 3, A) >= 1
    assert store.load_newest_boundary().boundary.running[A].step == 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[" * 100_000, id="nested too deep"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"body": {}, "sha256": "0"}', id="no boundary"),
        pytest.param(b'{"body": 3, "sha256": "0"}', id="a number for a body"),
    ],
)
def test_whatever_a_boundary_file_holds_it_is_passed_over(tmp_path: Path, content: bytes) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, A)
    (tmp_path / "pool" / "boundary-7.json").write_bytes(content)

    got = store.load_newest_boundary()

    assert got.boundary is not None
    assert got.boundary.number == 0
    assert [item.name for item in got.passed_over] == ["boundary-7.json"]


@pytest.mark.parametrize("field", ["running", "ended", "number"])
def test_a_boundary_that_was_edited_does_not_count(tmp_path: Path, field: str) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, A)
    save(store, 2, A)
    path = tmp_path / "pool" / "boundary-1.json"
    data = json.loads(path.read_bytes())
    data["body"][field] = 5 if field == "number" else {}
    data["body"]["codeVersion"] += "x"
    path.write_text(json.dumps(data))

    got = store.load_newest_boundary()

    assert got.boundary is not None
    assert got.boundary.number == 0


def test_a_boundary_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, A)
    path = tmp_path / "pool" / "boundary-0.json"
    data = json.loads(path.read_bytes())
    data["body"]["format"] = 2
    path.write_text(json.dumps(data))

    with pytest.raises(RefusalError, match="format 2, this version reads 1") as caught:
        store.load_newest_boundary()

    assert caught.value.reason is Reason.INVALID_CHECKPOINT
    assert path.exists()


def test_a_job_whose_part_is_damaged_falls_back_alone(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, A, B)
    save(store, 2, A, B)
    damage(store.job_folder(A) / "checkpoint-2" / WEIGHTS_FILE)

    boundary = store.load_newest_boundary().boundary
    assert boundary is not None
    got = {job: store.load_job(job, spec=SPEC, prefer=ref) for job, ref in boundary.running.items()}

    assert got[A].ref is not None
    assert (got[A].ref.step, got[B].ref) == (1, boundary.running[B])
    assert [item.name for item in got[A].passed_over] == ["checkpoint-2"]


def test_a_boundary_may_not_name_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    ref = store.save_job(make_snapshot(A, 1))

    for running in ({A: ref.model_copy(update={"step": 9, "manifest_sha256": "0" * 64})}, {B: ref}):
        with pytest.raises(ValueError, match="has no checkpoint"):
            store.save_boundary(running=running, ended={})
    assert not (tmp_path / "pool").exists()


def test_J05_nan_in_a_result_is_null_in_the_file_and_never_zero(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save_boundary(running={}, ended={A: {"losses": [float("nan"), 1.0, float("inf")]}})

    got = store.load_newest_boundary().boundary

    assert got is not None
    assert got.ended == {A: {"losses": [None, 1.0, None]}}
    assert "NaN" not in (tmp_path / "pool" / "boundary-0.json").read_text()


def test_foreign_files_in_the_pool_folder_stay(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    save(store, 1, A)
    for name in ("notes.json", "boundary-x.json", "boundary-01.json"):
        (tmp_path / "pool" / name).write_text("theirs")

    save(store, 2, A)

    assert {"notes.json", "boundary-x.json", "boundary-01.json"} < set(list_pool(tmp_path))


def test_keep_last_of_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"checkpoint.keepLast: got 0, want at least 1"):
        CheckpointStore(tmp_path, keep_last=0)
