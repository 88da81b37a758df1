"""What is read from pods and events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multigraft_operator.observed import PodProblem
from multigraft_operator.read_objects import find_problem, read_refusal


def ended(code: int, message: str = "", reason: str = "Error", waiting: str = "CrashLoopBackOff") -> dict[str, Any]:
    terminated = {"exitCode": code, "reason": reason, "message": message}
    state = {"waiting": {"reason": waiting, "message": "back-off 10s"}}
    return {"containerStatuses": [{"state": state, "lastState": {"terminated": terminated}}]}


BAD_BASE = json.dumps({"reason": "BaseModelInvalid", "message": "spec.baseModel.storageUri: no config.json"})
PROBLEMS = {
    "H12: bad configuration tells the trainer's own reason": (ended(2, BAD_BASE), "BaseModelInvalid", "no config.json"),
    "H12: bad configuration without last words": (ended(2), "PodFailing", "no use to try again unchanged"),
    "H12: a crash is a crash": (ended(1, "boom"), "PodFailing", "exit code 1: boom"),
    "H12: out of memory": (ended(137, reason="OOMKilled"), "OOMKilled", "exit code 137"),
    "H13: an image that cannot be pulled": (
        {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such host"}}}]},
        "ImagePullFailed", "no such host",
    ),
    "a Secret that is not there": (
        {"containerStatuses": [{"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "secret"}}}]},
        "PodFailing", "CreateContainerConfigError: secret",
    ),
    "H10: a node that is silent": (
        {"conditions": [{"type": "DisruptionTarget", "reason": "DeletionByTaintManager", "message": "taint"}]},
        "NodeLost", "taint",
    ),
    "a node that said goodbye": ({"reason": "NodeLost", "message": "Node n1 is lost"}, "NodeLost", "n1"),
    "no place on any node": (
        {"conditions": [{"type": "PodScheduled", "reason": "Unschedulable", "message": "0/3 nodes"}]},
        "Unschedulable", "0/3 nodes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("status, reason, words", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_a_pod_that_does_not_run_says_why(status: dict[str, Any], reason: str, words: str) -> None:
    got = find_problem(status)
    assert got is not None
    assert got.reason == reason
    assert words in got.message


def test_a_pod_that_is_being_made_has_no_problem() -> None:
    waiting = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    assert find_problem({"containerStatuses": [waiting]}) is None
    assert find_problem({}) is None


def test_H14_the_newest_refusal_of_a_pod_counts() -> None:
    old = {"lastTimestamp": "2026-01-01T00:00:00Z", "message": "create Pod a-0 failed: something"}
    new = {"lastTimestamp": "2026-01-01T00:01:00Z", "message": "pods a-0 is forbidden: exceeded quota: small"}
    assert read_refusal([new, old]) == PodProblem("QuotaExceeded", new["message"])
    assert read_refusal([old]) == PodProblem("PodFailing", old["message"])
    assert read_refusal([]) is None
