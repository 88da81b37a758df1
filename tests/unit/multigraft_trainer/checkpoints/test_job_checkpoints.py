from __future__ import annotations

import errno
import json
import os
import pickle
import resource
from pathlib import Path

import pytest
import torch

from builders.pickle_canary import PickleCanary
from builders.small_adapter import SPEC, make_adapter, make_snapshot, make_trained
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.peft_config import CONFIG_FILE, WEIGHTS_FILE
from multigraft_trainer.checkpoints.checkpoint_folder import (
    MANIFEST_FILE,
    MARKER_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    AdapterSnapshot,
)
from multigraft_trainer.checkpoints.job_checkpoints import JobCheckpoints
from multigraft_trainer.checkpoints.snapshot import restore_snapshot
from multigraft_trainer.storage.durable_files import hash_file

JOB = "default/a"


def save_steps(root: Path, *steps: int, job: str = JOB) -> JobCheckpoints:
    checkpoints = JobCheckpoints(root)
    for step in steps:
        checkpoints.save(make_snapshot(job, step))
    return checkpoints


def list_names(checkpoints: JobCheckpoints, job: str = JOB) -> list[str]:
    return sorted(path.name for path in checkpoints.folder(job).iterdir())


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def seal_again(folder: Path) -> None:
    """Make manifest and marker say what the files now hold."""
    manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
    for name, entry in manifest["files"].items():
        entry["sha256"], entry["numBytes"] = hash_file(folder / name)
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    (folder / MARKER_FILE).write_text(hash_file(folder / MANIFEST_FILE)[0] + "\n")


def assert_same(got: AdapterSnapshot | None, want: AdapterSnapshot) -> None:
    assert got is not None
    assert (got.state, got.peft_config) == (want.state, want.peft_config)
    for mine, theirs in ((got.weights, want.weights), (got.moments, want.moments)):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    want = make_snapshot(steps=3)
    ref = JobCheckpoints(tmp_path / "not" / "there" / "yet").save(want)

    got = JobCheckpoints(tmp_path / "not" / "there" / "yet").load(JOB, spec=SPEC)

    assert_same(got.snapshot, want)
    assert (got.ref, got.passed_over) == (ref, ())


def test_a_checkpoint_is_a_peft_adapter_with_our_state_beside(tmp_path: Path) -> None:
    checkpoints = save_steps(tmp_path, 3)
    folder = checkpoints.folder(JOB) / "checkpoint-3"

    want = {CONFIG_FILE, WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE, MANIFEST_FILE, MARKER_FILE}
    assert {path.name for path in folder.iterdir()} == want
    assert json.loads((folder / STATE_FILE).read_bytes())["step"] == 3
    assert json.loads((folder / CONFIG_FILE).read_bytes())["r"] == 4
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in folder.iterdir())


def test_D01_incomplete_checkpoints_are_passed_over_by_name_and_numbers_are_not_text(tmp_path: Path) -> None:
    checkpoints = save_steps(tmp_path, 9, 20, 30)
    folder = checkpoints.folder(JOB)
    (folder / "checkpoint-9" / MARKER_FILE).unlink()  # "checkpoint-9" sorts after "checkpoint-30" as text
    (folder / "checkpoint-30" / MARKER_FILE).unlink()
    (folder / "checkpoint-30" / STATE_FILE).unlink()
    os.truncate(folder / "checkpoint-30" / WEIGHTS_FILE, 2456)
    (folder / ".tmp-0123456789abcdef").mkdir()

    got = checkpoints.load(JOB, spec=SPEC)

    assert_same(got.snapshot, make_snapshot(steps=20))
    assert [item.name for item in got.passed_over] == ["checkpoint-30"]
    assert "is incomplete: has no readable COMPLETE marker" in got.passed_over[0].why


def test_D01_training_over_an_incomplete_checkpoint_makes_it_whole_and_clears_what_the_kill_left(
    tmp_path: Path,
) -> None:
    checkpoints = save_steps(tmp_path, 20, 30)
    folder = checkpoints.folder(JOB)
    (folder / "checkpoint-30" / MARKER_FILE).unlink()
    (folder / ".tmp-0123456789abcdef").mkdir()
    (folder / ".tmp-0123456789abcdef" / "x").write_text("x")
    (folder / ".trash-0123456789abcdef").mkdir()

    checkpoints.save(make_snapshot(steps=30))

    assert list_names(checkpoints) == ["checkpoint-20", "checkpoint-30"]
    assert_same(checkpoints.load(JOB, spec=SPEC).snapshot, make_snapshot(steps=30))


@pytest.mark.parametrize("name", [WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE, CONFIG_FILE, MANIFEST_FILE])
def test_D12_a_flipped_byte_falls_back_and_is_not_tried_again(tmp_path: Path, name: str) -> None:
    checkpoints = save_steps(tmp_path, 20, 30)
    flip_byte(checkpoints.folder(JOB) / "checkpoint-30" / name)

    first, second = (checkpoints.load(JOB, spec=SPEC) for _ in range(2))

    assert_same(first.snapshot, make_snapshot(steps=20))
    assert_same(second.snapshot, make_snapshot(steps=20))
    (passed_over,) = first.passed_over
    assert passed_over.name == "checkpoint-30"
    assert "is corrupt" in passed_over.why
    assert "set aside as quarantined-checkpoint-30-1" in passed_over.why
    assert second.passed_over == ()
    assert list_names(checkpoints) == ["checkpoint-20", "quarantined-checkpoint-30-1"]


@pytest.mark.parametrize("marker", [b"", b"0123", b"0" * 64, b"\xff" * 65, b"x" * 10_000])
def test_D01_a_marker_that_was_cut_short_is_none(tmp_path: Path, marker: bytes) -> None:
    checkpoints = save_steps(tmp_path, 20, 30)
    (checkpoints.folder(JOB) / "checkpoint-30" / MARKER_FILE).write_bytes(marker)

    got = checkpoints.load(JOB, spec=SPEC)

    assert_same(got.snapshot, make_snapshot(steps=20))
    assert "is incomplete" in got.passed_over[0].why
    assert list_names(checkpoints) == ["checkpoint-20", "checkpoint-30"]


@pytest.mark.parametrize("name", [WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE, CONFIG_FILE, MANIFEST_FILE])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "link", "folder"])
def test_D12_any_damage_to_any_file_falls_back(tmp_path: Path, name: str, damage: str) -> None:
    checkpoints = save_steps(tmp_path, 1, 2)
    path = checkpoints.folder(JOB) / "checkpoint-2" / name
    if damage == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.rename(tmp_path / "moved")
    if damage == "link":
        path.symlink_to(tmp_path / "moved")
    elif damage == "folder":
        path.mkdir()

    got = checkpoints.load(JOB, spec=SPEC)

    assert_same(got.snapshot, make_snapshot(steps=1))
    assert name in got.passed_over[0].why


def test_a_file_that_cannot_be_read_just_now_is_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = save_steps(tmp_path, 1, 2)
    real_open = os.open

    def refuse(path, flags, *args, **kwargs):
        if str(path).endswith(f"checkpoint-2/{WEIGHTS_FILE}"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real_open(path, flags, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        during = checkpoints.load(JOB, spec=SPEC)
    after = checkpoints.load(JOB, spec=SPEC)

    assert_same(during.snapshot, make_snapshot(steps=1))
    assert "cannot be read" in during.passed_over[0].why
    assert_same(after.snapshot, make_snapshot(steps=2))


def test_D12_if_nothing_is_good_the_job_starts_from_zero_and_says_why(tmp_path: Path) -> None:
    checkpoints = save_steps(tmp_path, 20, 30)
    for step in (20, 30):
        flip_byte(checkpoints.folder(JOB) / f"checkpoint-{step}" / WEIGHTS_FILE)

    got = checkpoints.load(JOB, spec=SPEC)

    assert got.snapshot is None
    assert [item.name for item in got.passed_over] == ["checkpoint-30", "checkpoint-20"]


def test_D11_a_first_start_has_nothing_to_load(tmp_path: Path) -> None:
    got = JobCheckpoints(tmp_path / "checkpoints").load(JOB, spec=SPEC)

    assert (got.snapshot, got.ref, got.passed_over) == (None, None, ())
    assert list(tmp_path.iterdir()) == []


FOREIGN = ("notes.txt", "checkpoint-07/x", "checkpoint-1.bak/x", "checkpoint-last/x", "Checkpoint-5/x", "latest/x")


def test_D11_foreign_files_are_left_alone(tmp_path: Path) -> None:
    checkpoints = JobCheckpoints(tmp_path)
    for name in FOREIGN:
        path = checkpoints.folder(JOB) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
    assert checkpoints.load(JOB, spec=SPEC).snapshot is None

    save_steps(tmp_path, 1, 2, 3)
    checkpoints.prune(JOB, keep_last=1)

    assert checkpoints.load(JOB, spec=SPEC).passed_over == ()
    assert all((checkpoints.folder(JOB) / name).read_text() == "theirs" for name in FOREIGN)


def test_D11_a_folder_of_another_trainer_with_our_name_is_neither_used_nor_removed(tmp_path: Path) -> None:
    checkpoints = save_steps(tmp_path, 1)
    theirs = checkpoints.folder(JOB) / "checkpoint-50"
    theirs.mkdir()
    (theirs / "trainer_state.json").write_text('{"step": 50}')

    got = checkpoints.load(JOB, spec=SPEC)
    save_steps(tmp_path, 2, 3, 50)
    checkpoints.prune(JOB, keep_last=1)

    assert_same(got.snapshot, make_snapshot(steps=1))
    moved = checkpoints.folder(JOB) / "quarantined-checkpoint-50-1" / "trainer_state.json"
    assert moved.read_text() == '{"step": 50}'


@pytest.mark.parametrize("name", ["rng_state.pth", "training_state.pt", "optimizer.bin", "scheduler.pkl"])
def test_K03_a_pickle_beside_good_files_is_never_opened(tmp_path: Path, name: str) -> None:
    canary = PickleCanary(tmp_path / "canary")
    checkpoints = save_steps(tmp_path / "root", 3)
    (checkpoints.folder(JOB) / "checkpoint-3" / name).write_bytes(canary.data)

    got = checkpoints.load(JOB, spec=SPEC)

    assert_same(got.snapshot, make_snapshot(steps=3))
    assert not canary.was_loaded


@pytest.mark.parametrize("name", [WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE])
def test_K03_a_pickle_under_the_name_of_our_file_is_not_loaded_even_with_right_hashes(
    tmp_path: Path, name: str
) -> None:
    canary = PickleCanary(tmp_path / "canary")
    checkpoints = save_steps(tmp_path / "root", 3)
    folder = checkpoints.folder(JOB) / "checkpoint-3"
    (folder / name).write_bytes(canary.data)
    seal_again(folder)

    got = checkpoints.load(JOB, spec=SPEC)

    assert got.snapshot is None
    assert "is corrupt" in got.passed_over[0].why
    assert not canary.was_loaded


def test_the_canary_sings_when_it_is_loaded(tmp_path: Path) -> None:
    canary = PickleCanary(tmp_path / "canary")
    pickle.loads(canary.data)

    assert canary.was_loaded


def test_D03_weights_moments_and_counters_go_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    from builders.small_adapter import train
    from multigraft_trainer.adapters.optimizer import AdapterOptimizer, OptimizerOptions

    straight, straight_optimizer = make_trained(steps=20)
    checkpoints = save_steps(tmp_path, 10)
    snapshot = checkpoints.load(JOB, spec=SPEC).snapshot
    assert snapshot is not None
    resumed = make_adapter(seed=42)
    optimizer = AdapterOptimizer(resumed, OptimizerOptions(1e-2, total_steps=100), restore_snapshot(snapshot, resumed))
    train(resumed, optimizer, 10)

    for got, want in (
        (resumed.weights, straight.weights),
        (resumed.exp_avg, straight.exp_avg),
        (resumed.exp_avg_sq, straight.exp_avg_sq),
    ):
        assert torch.equal(got, want)
    assert optimizer.progress == straight_optimizer.progress
    assert optimizer.learning_rate() == straight_optimizer.learning_rate()


@pytest.mark.parametrize("name", [WEIGHTS_FILE, OPTIMIZER_FILE])
def test_D05_a_renamed_key_stops_the_resume_with_its_name(tmp_path: Path, name: str) -> None:
    import safetensors.torch

    checkpoints = save_steps(tmp_path, 3)
    folder = checkpoints.folder(JOB) / "checkpoint-3"
    tensors = safetensors.torch.load_file(folder / name)
    key = next(iter(tensors))
    tensors["renamed"] = tensors.pop(key)
    safetensors.torch.save_file(tensors, folder / name)
    seal_again(folder)
    snapshot = checkpoints.load(JOB, spec=SPEC).snapshot
    assert snapshot is not None
    adapter = make_adapter()
    before = adapter.weights.clone()

    with pytest.raises(RefusalError, match=f"missing {key}; not expected renamed") as caught:
        restore_snapshot(snapshot, adapter)

    assert caught.value.reason is Reason.INVALID_CHECKPOINT
    assert torch.equal(adapter.weights, before)


def test_another_spec_is_refused_with_what_differs(tmp_path: Path) -> None:
    checkpoints = save_steps(tmp_path, 3)
    spec = {"lora": {"r": 4}, "training": {"learningRate": "0.002", "seed": 1}}

    with pytest.raises(RefusalError) as caught:
        checkpoints.load(JOB, spec=spec)

    assert caught.value.reason is Reason.INVALID_CHECKPOINT
    assert "training.learningRate: '0.001' there, '0.002' now" in caught.value.message
    assert "training.seed: 'absent' there, 1 now" in caught.value.message
    assert "lora.r" not in caught.value.message
    assert list_names(checkpoints) == ["checkpoint-3"]


@pytest.mark.parametrize("name", [STATE_FILE, MANIFEST_FILE])
def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    checkpoints = save_steps(tmp_path, 3)
    folder = checkpoints.folder(JOB) / "checkpoint-3"
    data = json.loads((folder / name).read_bytes())
    (folder / name).write_text(json.dumps({**data, "format": 2, "unknown": True}))
    if name == STATE_FILE:
        seal_again(folder)
    else:
        (folder / MARKER_FILE).write_text(hash_file(folder / MANIFEST_FILE)[0] + "\n")

    with pytest.raises(RefusalError, match="format 2, this version reads 1") as caught:
        checkpoints.load(JOB, spec=SPEC)

    assert caught.value.reason is Reason.INVALID_CHECKPOINT
    assert list_names(checkpoints) == ["checkpoint-3"]


def test_a_checkpoint_copied_from_another_job_or_step_is_not_used(tmp_path: Path) -> None:
    checkpoints = save_steps(tmp_path, 3, job="default/b")
    checkpoints.folder(JOB).parent.mkdir(parents=True, exist_ok=True)
    checkpoints.folder("default/b").rename(checkpoints.folder(JOB))

    got = checkpoints.load(JOB, spec=SPEC)

    assert got.snapshot is None
    assert "its state is of default/b at step 3" in got.passed_over[0].why


def test_the_preferred_checkpoint_is_loaded_though_a_newer_one_is_there(tmp_path: Path) -> None:
    checkpoints = JobCheckpoints(tmp_path)
    refs = [checkpoints.save(make_snapshot(steps=step)) for step in (1, 2, 3)]

    got = checkpoints.load(JOB, spec=SPEC, prefer=refs[1])

    assert_same(got.snapshot, make_snapshot(steps=2))
    assert (got.ref, got.passed_over) == (refs[1], ())


def test_a_damaged_preferred_checkpoint_falls_back_to_the_newest_good_one(tmp_path: Path) -> None:
    checkpoints = JobCheckpoints(tmp_path)
    refs = [checkpoints.save(make_snapshot(steps=step)) for step in (1, 2, 3)]
    flip_byte(checkpoints.folder(JOB) / "checkpoint-2" / WEIGHTS_FILE)

    got = checkpoints.load(JOB, spec=SPEC, prefer=refs[1])

    assert got.ref == refs[2]
    assert [item.name for item in got.passed_over] == ["checkpoint-2"]


def test_the_same_state_saved_again_is_the_same_checkpoint(tmp_path: Path) -> None:
    checkpoints = save_steps(tmp_path, 3)
    inode = (checkpoints.folder(JOB) / "checkpoint-3").stat().st_ino

    got = checkpoints.save(make_snapshot(steps=3))

    assert got == checkpoints.load(JOB, spec=SPEC).ref
    assert (checkpoints.folder(JOB) / "checkpoint-3").stat().st_ino == inode
    assert list_names(checkpoints) == ["checkpoint-3"]


def test_another_state_of_the_same_step_replaces_the_first(tmp_path: Path) -> None:
    checkpoints = save_steps(tmp_path, 3)
    want = make_snapshot(steps=3, seed=7)

    checkpoints.save(want)

    assert_same(checkpoints.load(JOB, spec=SPEC).snapshot, want)
    assert list_names(checkpoints) == ["checkpoint-3"]


def test_prune_keeps_the_newest_good_ones_and_what_is_pinned(tmp_path: Path) -> None:
    checkpoints = JobCheckpoints(tmp_path)
    refs = {step: checkpoints.save(make_snapshot(steps=step)) for step in (1, 2, 9, 10, 11)}
    (checkpoints.folder(JOB) / "checkpoint-11" / MARKER_FILE).unlink()

    checkpoints.prune(JOB, keep_last=2, pinned={refs[1].manifest_sha256})

    assert list_names(checkpoints) == ["checkpoint-1", "checkpoint-10", "checkpoint-9"]
    assert checkpoints.holds(refs[10])
    assert not checkpoints.holds(refs[2])


def test_prune_of_a_job_without_checkpoints_does_nothing(tmp_path: Path) -> None:
    JobCheckpoints(tmp_path).prune(JOB, keep_last=1)


def test_B19_a_snapshot_with_nan_is_refused_and_the_last_good_one_kept(tmp_path: Path) -> None:
    checkpoints = save_steps(tmp_path, 1)
    bad = make_snapshot(steps=2)
    next(iter(bad.weights.values()))[0, 0] = torch.nan

    with pytest.raises(RefusalError, match="holds NaN or infinity") as caught:
        checkpoints.save(bad)

    assert caught.value.reason is Reason.NON_FINITE
    assert list_names(checkpoints) == ["checkpoint-1"]


@pytest.mark.parametrize("job", ["team/team-a.support-v1.2", "a/" + "x" * 253, "n" * 63 + "/" + "y." * 126 + "z"])
def test_B13_every_legal_job_name_is_a_folder(tmp_path: Path, job: str) -> None:
    checkpoints = save_steps(tmp_path, 1, 2, job=job)
    checkpoints.prune(job, keep_last=1)

    assert_same(checkpoints.load(job, spec=SPEC).snapshot, make_snapshot(job, 2))
    assert list_names(checkpoints, job) == ["checkpoint-2"]


@pytest.mark.parametrize("where", ["jobs", "jobs/default", "jobs/default/a"])
def test_K11_a_symbolic_link_on_the_way_is_refused(tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = tmp_path / "root" / where
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)

    with pytest.raises(RefusalError, match="is a symbolic link") as caught:
        save_steps(tmp_path / "root", 1)

    assert caught.value.reason is Reason.STORAGE_NOT_ALLOWED
    assert list(outside.iterdir()) == []


def test_K11_a_link_in_place_of_a_checkpoint_is_passed_over_and_not_followed(tmp_path: Path) -> None:
    elsewhere = save_steps(tmp_path / "elsewhere", 9)
    checkpoints = save_steps(tmp_path / "root", 1)
    (checkpoints.folder(JOB) / "checkpoint-9").symlink_to(elsewhere.folder(JOB) / "checkpoint-9")

    got = checkpoints.load(JOB, spec=SPEC)
    checkpoints.save(make_snapshot(steps=9, seed=3))
    checkpoints.prune(JOB, keep_last=1)

    assert_same(got.snapshot, make_snapshot(steps=1))
    assert "is no plain folder" in got.passed_over[0].why
    assert_same(elsewhere.load(JOB, spec=SPEC).snapshot, make_snapshot(steps=9))


def test_a_file_where_the_folder_should_be_is_a_clear_refusal(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")

    with pytest.raises(RefusalError, match="checkpoint of default/a at step 1") as caught:
        save_steps(tmp_path / "root", 1)

    assert caught.value.reason is Reason.OUTPUT_NOT_WRITABLE


def test_a_full_disk_is_a_clear_refusal_and_everything_before_is_kept(tmp_path: Path) -> None:
    checkpoints = save_steps(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # the kernel refuses to write more, as a full disk does
    try:
        with pytest.raises(RefusalError) as caught:
            checkpoints.save(make_snapshot(steps=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert caught.value.reason is Reason.OUTPUT_NOT_WRITABLE
    assert list_names(checkpoints) == ["checkpoint-1"]
    assert_same(checkpoints.load(JOB, spec=SPEC).snapshot, make_snapshot(steps=1))
