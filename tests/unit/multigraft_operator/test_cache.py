"""The cache: newer wins, a list is what counts, a dead watch is noticed."""

from __future__ import annotations

from typing import Any

from multigraft_operator.cache import ObjectCache
from multigraft_operator.observed import Key
from multigraft_operator.read_objects import find_problem


def make_raw(name: str = "a", version: int = 1, **spec: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "team-a",
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T12:00:00Z",
        "generateName": "x-",
    }
    base = {"poolRef": {"name": "p"}, "dataset": {"storageUri": "r.jsonl"}, "training": {"maxSteps": 1}}
    return {"metadata": metadata, "spec": base | spec}


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    cache = ObjectCache()
    cache.hear("AdapterJob", "ADDED", make_raw(version=5, suspend=True))
    cache.hear("AdapterJob", "MODIFIED", make_raw(version=4))
    spec = cache.jobs[Key("team-a", "a")].spec
    assert spec is not None
    assert spec.suspend


def test_what_a_list_lacks_is_gone_unless_it_is_newer_than_the_list() -> None:
    cache = ObjectCache()
    cache.hear("AdapterJob", None, make_raw("old", version=3))
    cache.hear("AdapterJob", None, make_raw("new", version=9))
    cache.replace("AdapterJob", [], "7")
    assert [key.name for key in cache.jobs] == ["new"]


def test_a_spec_that_cannot_be_read_says_why_and_harms_no_other() -> None:
    cache = ObjectCache()
    cache.hear("AdapterJob", None, make_raw("bad", training={"maxSteps": "many"}))
    cache.hear("AdapterJob", None, make_raw("good"))
    assert "maxSteps" in cache.jobs[Key("team-a", "bad")].error
    assert cache.jobs[Key("team-a", "good")].spec is not None


def test_H05_two_lists_that_know_more_than_the_watch_mean_that_it_is_dead() -> None:
    cache = ObjectCache()
    cache.hear("AdapterJob", None, make_raw(version=1))
    cache.replace("AdapterJob", [make_raw(version=2)], "2")
    assert cache.missed_by_watches == 0  # the event may be on its way
    cache.replace("AdapterJob", [make_raw(version=2)], "3")
    assert cache.missed_by_watches == 1


def test_a_late_event_is_no_dead_watch() -> None:
    cache = ObjectCache()
    cache.replace("AdapterJob", [make_raw(version=2)], "2")
    cache.hear("AdapterJob", "MODIFIED", make_raw(version=2))
    cache.replace("AdapterJob", [make_raw(version=2)], "3")
    assert cache.missed_by_watches == 0


def test_H13_an_image_that_cannot_be_pulled_is_told_in_the_kubelets_words() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.invalid/x:1"'}
    problem = find_problem({"containerStatuses": [{"state": {"waiting": waiting}}]})
    assert problem is not None
    assert (problem.reason, problem.message) == ("ImagePullFailed", waiting["message"])


def test_H12_a_trainer_that_ran_out_of_memory_is_told() -> None:
    ended = {"reason": "OOMKilled", "exitCode": 137}
    status = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
    problem = find_problem({"containerStatuses": [status]})
    assert problem is not None
    assert problem.reason == "OOMKilled"
