"""Promise 3: killed between any two system calls, or by SIGKILL at any moment, the store can be read and goes on."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from builders.dying_os import DiedError, dying_os, list_inodes, lose_unsynced
from builders.small_adapter import SPEC, make_snapshot
from multigraft_trainer.checkpoints.checkpoint_folder import AdapterSnapshot
from multigraft_trainer.checkpoints.store import CheckpointStore

JOBS = ("default/a", "other/b")
NUM_KILLS = 30
LAST_STEP = 4


def build_snapshots(last_step: int) -> dict[tuple[str, int], AdapterSnapshot]:
    return {
        (job, step): make_snapshot(job, step, rank=1 + index, seed=index)
        for index, job in enumerate(JOBS)
        for step in range(1, last_step + 1)
    }


SNAPSHOTS = build_snapshots(LAST_STEP)


def save_boundary(store: CheckpointStore, step: int) -> None:
    """Save all jobs at a step, then the boundary."""
    running = {job: store.save_job(SNAPSHOTS[job, step]) for job in JOBS}
    store.save_boundary(running=running, ended={"default/done": {"steps": step}})


def read_step(store: CheckpointStore) -> int:
    """Restore the pool; check that all is of one boundary, bit for bit; give its step, 0 for none."""
    restored = store.load_newest_boundary()
    if restored.boundary is None:
        return 0
    step: Any = restored.boundary.ended["default/done"]["steps"]
    assert restored.passed_over == ()
    assert set(restored.boundary.running) == set(JOBS)
    for job, ref in restored.boundary.running.items():
        got = store.load_job(job, spec=SPEC, prefer=ref)
        assert (got.ref, got.passed_over) == (ref, ())
        assert got.snapshot is not None
        assert_equal(got.snapshot, SNAPSHOTS[job, step])
    return int(step)


def assert_equal(got: AdapterSnapshot, want: AdapterSnapshot) -> None:
    assert got.state == want.state
    assert all(torch.equal(got.weights[key], want.weights[key]) for key in want.weights)
    assert all(torch.equal(got.moments[key], want.moments[key]) for key in want.moments)


def test_every_new_name_is_durable_when_a_boundary_is_saved(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "deep" / "root", keep_last=1)
    with dying_os() as system:
        for step in (1, 2, 3):
            save_boundary(store, step)

            assert system.unsynced_names == {}


@pytest.mark.parametrize("step", [1, 3], ids=["first save", "later save with pruning"])
def test_death_between_any_two_system_calls_leaves_the_old_boundary_or_the_new(tmp_path: Path, step: int) -> None:
    before = tmp_path / "before"
    with dying_os():
        for earlier in range(1, step):
            save_boundary(CheckpointStore(before, keep_last=1), earlier)
    before.mkdir(exist_ok=True)
    seen = set()
    for die_at in itertools.count():
        root = tmp_path / str(die_at)
        shutil.copytree(before, root)
        known = list_inodes(root)
        with dying_os(die_at) as system:
            died = dies(lambda root=root: save_boundary(CheckpointStore(root, keep_last=1), step))
        if die_at % 2:  # every other death is a power cut
            lose_unsynced(root, system, known=known)

        seen.add(read_step(CheckpointStore(root, keep_last=1)))
        with dying_os():
            save_boundary(CheckpointStore(root, keep_last=1), step)
            save_boundary(CheckpointStore(root, keep_last=1), step + 1)
        assert read_step(CheckpointStore(root, keep_last=1)) == step + 1
        assert list_leftovers(root) == []
        shutil.rmtree(root)
        if not died:
            break

    assert seen == {step - 1, step}
    assert die_at > 50


def dies(action: Callable[[], object]) -> bool:
    try:
        action()
    except DiedError:
        return True
    return False


def list_leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith((".tmp-", ".trash-", ".replaced-"))]


def test_death_while_a_checkpoint_is_replaced_leaves_the_old_one_or_the_new(tmp_path: Path) -> None:
    job = JOBS[0]
    old, new = SNAPSHOTS[job, 2], make_snapshot(job, 2, rank=1, seed=77)
    for die_at in itertools.count():
        store = CheckpointStore(tmp_path / str(die_at))
        with dying_os():
            old_ref = store.save_job(old)
        with dying_os(die_at):
            died = dies(lambda store=store: store.save_job(new))

        got = store.load_job(job, spec=SPEC, prefer=old_ref)
        assert got.snapshot is not None
        assert_equal(got.snapshot, old if got.ref == old_ref else new)
        with dying_os():
            store.save_job(new)
        got = store.load_job(job, spec=SPEC)
        assert got.snapshot is not None
        assert_equal(got.snapshot, new)
        if not died:
            break
    assert die_at > 20


def test_sigkill_at_random_moments_never_loses_a_finished_boundary(tmp_path: Path) -> None:
    """A child saves boundary after boundary and says in a pipe when one is finished; the parent kills it."""
    rng = random.Random(0)
    root = tmp_path / "store"
    got = 0
    for _ in range(NUM_KILLS):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            save_forever(root, writer)
        os.close(writer)
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            finished = pipe.read(1) or b""
            time.sleep(rng.uniform(0.0, 0.1))  # only to hit another moment each time
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            while rest := pipe.read(1024):
                finished += rest

        got = read_step(CheckpointStore(root))

        # The kill may have come after the rename that finishes a boundary and before the child could say so.
        assert got in (finished[-1], finished[-1] % LAST_STEP + 1)
    assert got > 0


def save_forever(root: Path, writer: int) -> None:
    try:
        torch.set_num_threads(1)
        store = CheckpointStore(root)
        step = read_step(store)
        while True:
            step = step % LAST_STEP + 1
            save_boundary(store, step)
            os.write(writer, bytes([step]))
    finally:
        os._exit(1)
