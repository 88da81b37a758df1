from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.control import Assignments, ControlReason
from multigraft_trainer.service.desired_set import FILE, DesiredSet, FencedError


def make_pool(uid: str = "u-1") -> BaseModelPool:
    return BaseModelPool.model_validate_json(
        json.dumps(
            {
                "apiVersion": "multigraft.dev/v1alpha1",
                "kind": "BaseModelPool",
                "metadata": {"name": "p", "namespace": "a", "uid": uid},
                "spec": {"baseModel": {"storageUri": "base"}},
            }
        )
    )


def make_set(epoch: int, *names: str, **changes: Any) -> Assignments:
    spec = {"poolRef": {"name": "p"}, "dataset": {"storageUri": "a.jsonl"}, "training": {"maxSteps": 3}}
    jobs = [{"id": {"namespace": "a", "name": name, "uid": "x"}, "generation": 1, "spec": spec} for name in names]
    body = {"epoch": epoch, "pool": {"namespace": "a", "name": "p", "uid": "u-1"}, "jobs": jobs, **changes}
    return Assignments.model_validate_json(json.dumps(body))


def test_the_same_set_again_changes_nothing(tmp_path: Path) -> None:
    desired = DesiredSet(make_pool(), "pod-0", tmp_path)
    assert desired.accept(make_set(1, "one"))
    assert not desired.accept(make_set(1, "one"))
    assert desired.accept(make_set(2, "one"))
    assert desired.accept(make_set(2))


def test_a_set_that_comes_after_a_newer_one_of_its_leader_is_refused(tmp_path: Path) -> None:
    desired = DesiredSet(make_pool(), "pod-0", tmp_path)
    desired.accept(make_set(1, "new", sequence=8))
    with pytest.raises(FencedError) as caught:
        desired.accept(make_set(1, "late", sequence=7))
    assert caught.value.reason is ControlReason.STALE_SET
    assert list(desired.jobs) == ["a/new"]
    assert desired.accept(make_set(1, "newer", sequence=9))
    assert desired.accept(make_set(2, "another-leader", sequence=1))
    with pytest.raises(FencedError, match="have obeyed 1"):
        DesiredSet(make_pool(), "pod-0", tmp_path).accept(make_set(2, sequence=0))


FENCED = {
    "a lower epoch": (make_set(4, "one"), ControlReason.STALE_EPOCH, 5),
    "another pool": (
        make_set(6, pool={"namespace": "a", "name": "q", "uid": "u-1"}), ControlReason.WRONG_POOL, None,
    ),
    "a pool of the same name that was made anew": (
        make_set(6, pool={"namespace": "a", "name": "p", "uid": "u-2"}), ControlReason.WRONG_POOL, None,
    ),
    "another pod": (make_set(6, pod="pod-1"), ControlReason.WRONG_POD, None),
}  # fmt: skip


@pytest.mark.parametrize("wanted, reason, epoch", FENCED.values(), ids=FENCED.keys())
def test_a_set_that_is_not_for_this_trainer_now_changes_nothing(
    tmp_path: Path, wanted: Assignments, reason: ControlReason, epoch: int | None
) -> None:
    desired = DesiredSet(make_pool(), "pod-0", tmp_path)
    desired.accept(make_set(5, "kept"))
    with pytest.raises(FencedError) as caught:
        desired.accept(wanted)
    assert (caught.value.reason, caught.value.current_epoch) == (reason, epoch)
    assert (desired.epoch, list(desired.jobs)) == (5, ["a/kept"])


def test_the_next_process_of_a_pod_takes_up_what_was_accepted(tmp_path: Path) -> None:
    DesiredSet(make_pool(), "pod-0", tmp_path / "state").accept(make_set(5, "one", pod="pod-0"))
    again = DesiredSet(make_pool(), "pod-0", tmp_path / "state")
    assert (again.epoch, list(again.jobs)) == (5, ["a/one"])


@pytest.mark.parametrize("content", [b"", b"{", b'{"epoch": 1}', b"\xff"])
def test_a_damaged_file_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert DesiredSet(make_pool(), "pod-0", tmp_path).epoch == 0


def test_what_another_pool_left_is_passed_over(tmp_path: Path) -> None:
    DesiredSet(make_pool(), "pod-0", tmp_path).accept(make_set(5, "one"))
    assert DesiredSet(make_pool("u-2"), "pod-0", tmp_path).jobs == {}
