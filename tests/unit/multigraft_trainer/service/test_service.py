"""The trainer service as a process on loopback: what callers, the kubelet and a crash do to it changes no weights."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.pool_run import measure_difference
from builders.run_dir import RunDirectory, make_rows
from builders.tiny_base import make_tiny_base
from builders.trainer_service import TOKEN, TrainerService, wait_for
from multigraft.api.control import ControlError, TrainerState

TOLERANCE = 1e-5  # relative, over all tensors of an adapter: fp32 rounding of differently cut matrix products

JOBS: dict[str, dict[str, Any]] = {
    "first": {"lora": {"loraDropout": "0.1"}, "seed": 1, "maxSteps": 30},
    "second": {"rows": make_rows(9, seed=3), "lora": {"r": 8}, "globalBatchSize": 3, "seed": 2, "maxSteps": 26},
    "third": {"rows": make_rows(5, seed=5), "lora": {"r": 2}, "globalBatchSize": 2, "seed": 7, "maxSteps": 20},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture(scope="module")
def undisturbed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the output of `multigraft run` of the same jobs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    directory = RunDirectory(folder / "dir", base=base)
    for name, options in JOBS.items():
        directory.add_job(name, **options)
    directory.run(folder / "out")
    return folder / "out"


@pytest.fixture
def service(base: Path, tmp_path: Path) -> Iterator[TrainerService]:
    found = TrainerService(tmp_path, base)
    yield found
    if found.process is not None and found.process.is_alive():
        found.kill()


@pytest.fixture(scope="module")
def shared(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainerService]:
    """Give a service that several tests use, each with its own jobs and rising epochs."""
    found = TrainerService(tmp_path_factory.mktemp("shared"), base)
    found.start()
    yield found
    found.kill()


def assign(service: TrainerService, *names: str) -> list[dict[str, Any]]:
    return [service.job(name, **JOBS[name]) for name in names]


def expect_equal(service: TrainerService, undisturbed: Path, *names: str) -> None:
    from safetensors.torch import load_file

    for name in names:
        want = load_file(undisturbed / "adapters" / "default" / name / "adapter_model.safetensors")
        assert measure_difference(service.weights(name), want) < TOLERANCE, name


def list_joins(service: TrainerService, name: str) -> list[int]:
    """Give the step at which the job stood each time that it joined."""
    events = service.events()
    return [event["step"] for event in events if event["event"] == "job runs" and event["job"] == f"default/{name}"]


def next_epoch(service: TrainerService) -> int:
    return int(service.state()["epoch"]) + 1


REFUSED_CALLS = {
    "without a token": ("GET", "/v1/state", None, None, 401, "Unauthenticated"),
    "with another token": ("GET", "/v1/state", None, "Bearer " + "x" * 36, 401, "Unauthenticated"),
    "with the token in another scheme": ("GET", "/v1/state", None, f"Basic {TOKEN}", 401, "Unauthenticated"),
    "with a token that is no ASCII": ("GET", "/v1/state", None, "Bearer \u00e9\u00e9", 401, "Unauthenticated"),
    "of an unknown path without a token": ("GET", "/v2/secret", None, None, 401, "Unauthenticated"),
    "of an unknown path": ("GET", "/v2/state", None, f"Bearer {TOKEN}", 404, "NotFound"),
    "by another method": ("POST", "/v1/assignments", b"{}", f"Bearer {TOKEN}", 405, "MethodNotAllowed"),
    "with a body that is no JSON": ("PUT", "/v1/assignments", b"\xff{", f"Bearer {TOKEN}", 422, "InvalidRequest"),
    "with an empty body": ("PUT", "/v1/assignments", b"", f"Bearer {TOKEN}", 422, "InvalidRequest"),
    "with an unknown field": (
        "PUT", "/v1/assignments",
        b'{"epoch": 9, "pool": {"namespace": "default", "name": "tiny", "uid": "u"}, "jobs": [], "job": []}',
        f"Bearer {TOKEN}", 422, "InvalidRequest",
    ),
    "with a body beyond the limit": (
        "PUT", "/v1/assignments", b" " * (40 << 20), f"Bearer {TOKEN}", 413, "TooLarge",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "method, path, body, authorization, status, reason", REFUSED_CALLS.values(), ids=REFUSED_CALLS.keys()
)
def test_a_call_is_refused_with_a_typed_reason(
    shared: TrainerService,
    method: str,
    path: str,
    body: bytes | None,
    authorization: str | None,
    status: int,
    reason: str,
) -> None:
    answer = shared.call(method, path, body, authorization=authorization)
    assert answer.status == status
    assert ControlError.model_validate(answer.body).reason.value == reason
    assert TOKEN not in json.dumps(answer.body)


def test_probes_need_no_token(shared: TrainerService) -> None:
    assert shared.call("GET", "/healthz", authorization=None).status == 200
    assert shared.call("GET", "/readyz", authorization=None).status == 200


def test_a_set_of_a_lower_epoch_is_refused_and_told_the_current_one(shared: TrainerService) -> None:
    epoch = next_epoch(shared) + 5
    assert shared.put(epoch=epoch).status == 200
    answer = shared.put(shared.job("stale"), epoch=epoch - 1)
    assert (answer.status, answer.body["reason"], answer.body["currentEpoch"]) == (409, "StaleEpoch", epoch)
    assert shared.report("stale") == {}


def test_a_set_for_another_pool_or_pod_is_refused(shared: TrainerService) -> None:
    epoch = next_epoch(shared)
    other = {"namespace": "default", "name": "tiny", "uid": "pool-uid-2"}
    assert shared.put(epoch=epoch, pool=other).body["reason"] == "WrongPool"
    assert shared.put(epoch=epoch, pod="tiny-cpu-1").body["reason"] == "WrongPod"
    assert shared.state()["epoch"] < epoch


def test_R18_a_set_that_is_sent_again_trains_nothing_twice(shared: TrainerService) -> None:
    epoch = next_epoch(shared)
    job = shared.job("once", maxSteps=4)
    assert shared.put(job, epoch=epoch).status == 200
    shared.put(job, epoch=epoch)  # the first answer was lost
    want = shared.wait_for_phase("once", "Succeeded")
    got = shared.put(job, epoch=epoch + 1).body["jobs"]
    assert got == [want]
    assert list_joins(shared, "once") == [0]
    assert (want["step"], want["totalSteps"]) == (4, 4)
    assert want["outputDigest"].startswith("sha256:")
    assert want["outputUri"].endswith("adapters/default/once")


def test_H24_a_job_is_told_as_succeeded_while_its_neighbour_trains_and_until_it_is_dropped(
    shared: TrainerService,
) -> None:
    epoch = next_epoch(shared)
    short, long = shared.job("short", maxSteps=2), shared.job("long", maxSteps=5000)
    shared.put(short, long, epoch=epoch)
    shared.wait_for_phase("short", "Succeeded")
    assert shared.wait_for_phase("long", "Running")["slot"] is not None
    shared.put(long, epoch=epoch)
    wait_for(lambda: shared.report("short") == {})
    shared.put(epoch=epoch)
    wait_for(lambda: shared.state()["jobs"] == [])
    assert shared.state()["capacity"]["slotsInUse"] == 0


def test_R10_a_job_that_turns_NaN_fails_alone_and_is_tried_again_only_on_a_new_attempt(shared: TrainerService) -> None:
    epoch = next_epoch(shared)
    bad = shared.job("bad", learningRate="1e30", maxNonfiniteSteps=0, lrSchedulerType="Constant")
    good = shared.job("good", maxSteps=6)
    shared.put(bad, good, epoch=epoch)
    failed = shared.wait_for_phase("bad", "Failed")
    assert failed["reason"] == "NonFinite"
    assert shared.wait_for_phase("good", "Succeeded")["step"] == 6
    assert shared.put(bad, good, epoch=epoch).body["jobs"][0]["phase"] == "Failed"
    again = shared.put({**bad, "attempt": 1}, good, epoch=epoch)
    assert again.status == 200
    wait_for(lambda: shared.report("bad").get("attempt") == 1)
    assert shared.wait_for_phase("bad", "Failed")["reason"] == "NonFinite"


def test_R11_a_job_with_bad_rows_fails_with_its_reason_and_never_runs(shared: TrainerService) -> None:
    job = shared.job("no-rows", rows=[])
    shared.put(job, epoch=next_epoch(shared))
    got = shared.wait_for_phase("no-rows", "Failed", "Running")
    assert (got["phase"], got["reason"], got["step"]) == ("Failed", "DatasetEmpty", 0)


def test_a_secret_of_a_job_is_refused_and_not_passed_over(shared: TrainerService) -> None:
    epoch = next_epoch(shared)
    job = shared.job("with-secret", dataset={"secretRef": {"name": "s3-keys"}})
    shared.put(job, epoch=epoch)
    report = shared.wait_for_phase("with-secret", "Failed")
    assert report["reason"] == "NotSupported"
    assert "spec.dataset.secretRef: got s3-keys" in report["message"]


def test_a_job_may_not_write_into_the_folder_of_one_that_trains_or_is_named_so(shared: TrainerService) -> None:
    def at(output: str) -> dict[str, Any]:
        return {"output": {"storageUri": output}}

    epoch = next_epoch(shared)
    first = shared.job("owner", maxSteps=100_000, spec=at("shared/one"))
    shared.put(first, epoch=epoch)
    shared.wait_for_phase("owner", "Running")
    late = shared.job("late", spec=at("shared"))
    thief = shared.job("thief", spec=at("adapters/default/later"))
    later = shared.job("later", spec={"suspend": True})
    spy = shared.job("spy", spec=at("checkpoints/default/x"))
    shared.put(first, late, thief, later, spy, epoch=epoch)
    for name, reason, text in (
        ("late", "InvalidSpec", "default/owner"),
        ("thief", "InvalidSpec", "default/later"),
        ("spy", "StorageNotAllowed", "of the run itself"),
    ):
        report = shared.wait_for_phase(name, "Failed")
        assert report["reason"] == reason
        assert text in report["message"]
    assert shared.report("owner")["phase"] == "Running"
    shared.put(epoch=epoch)
    wait_for(lambda: not shared.state()["jobs"])


def test_inline_rows_of_a_config_map_are_trained_and_missing_ones_are_said(shared: TrainerService) -> None:
    import base64

    content = "".join(json.dumps(row) + "\n" for row in make_rows(6)).encode()
    job = shared.job("inline", maxSteps=2)
    job["spec"]["dataset"] = {"configMapRef": {"name": "rows", "key": "rows.jsonl"}}
    rows = {"key": "rows.jsonl", "content": base64.b64encode(content).decode()}
    epoch = next_epoch(shared)
    shared.put(job, epoch=epoch)
    got = shared.wait_for_phase("inline", "Failed")
    assert got["reason"] == "DatasetNotFound"
    shared.put({**job, "rows": rows}, epoch=epoch)
    assert shared.wait_for_phase("inline", "Succeeded")["rowsUsed"] == 6


def test_I08_metrics_are_valid_and_series_of_finished_jobs_are_gone(shared: TrainerService) -> None:
    from urllib.request import urlopen

    from prometheus_client.parser import text_string_to_metric_families

    epoch = next_epoch(shared)
    shared.put(shared.job("measured", maxSteps=5000), shared.job("gone", maxSteps=2), epoch=epoch)
    shared.wait_for_phase("gone", "Succeeded")
    shared.wait_for_step("measured", 3)
    with urlopen(f"http://127.0.0.1:{shared.metrics_port}/metrics", timeout=10) as response:
        text = response.read().decode()
    families = list(text_string_to_metric_families(text))
    series = [(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples]
    assert len(series) == len(set(series))
    assert all(family.documentation for family in families)
    assert "NaN" not in text
    jobs = {sample.labels["job"] for family in families for sample in family.samples if "job" in sample.labels}
    assert jobs == {"measured"}
    ready = [sample.value for family in families for sample in family.samples if sample.name.endswith("trainer_ready")]
    assert ready == [1]
    shared.put(epoch=epoch)


def test_jobs_join_and_leave_while_others_train_and_no_weight_changes(
    service: TrainerService, undisturbed: Path
) -> None:
    service.start()
    first, second, third = assign(service, "first", "second", "third")
    service.put(first, third)
    service.wait_for_step("first", 3)
    service.put(first, third, second)  # hot add
    service.wait_for_step("third", 4)
    service.put(first, second)  # hot remove
    wait_for(lambda: service.report("third") == {})
    suspended = {**first, "generation": 2, "spec": {**first["spec"], "suspend": True}}
    service.put(suspended, second)
    stopped = service.wait_for_phase("first", "Stopped", "Succeeded")
    service.put({**first, "generation": 3}, second, third)  # both come back
    for name in JOBS:
        service.wait_for_phase(name, "Succeeded", "Failed")
    assert stopped["slot"] is None
    assert stopped["phase"] == "Succeeded" or stopped["checkpointStep"] == stopped["step"]
    expect_equal(service, undisturbed, *JOBS)
    assert service.stop() == 0


def test_H21_after_SIGTERM_and_after_SIGKILL_jobs_go_on_by_themselves_and_end_equal(
    service: TrainerService, undisturbed: Path
) -> None:
    service.start()
    service.put(*assign(service, *JOBS))
    service.wait_for_step("first", 4)
    assert service.stop() == 0
    service.start()  # nobody calls: the operator is away
    service.wait_for_step("first", 6)
    before = service.state()
    service.kill()
    service.start()
    assert service.state()["startId"] != before["startId"]
    assert service.state()["epoch"] == before["epoch"]
    for name in JOBS:
        service.wait_for_phase(name, "Succeeded", "Failed")
    expect_equal(service, undisturbed, *JOBS)
    joins = list_joins(service, "first")
    assert joins == [0, *sorted(joins[1:])]  # no start fell behind the checkpoint that the one before had
    assert 0 not in joins[1:]
    digests = {job["name"]: job["outputDigest"] for job in service.state()["jobs"]}
    service.kill()
    num_events = len(service.events())
    service.start()
    wait_for(lambda: all(job["phase"] == "Succeeded" for job in service.state()["jobs"]))
    got = {job["name"]: job["outputDigest"] for job in service.state()["jobs"]}
    assert got == digests
    assert not [event for event in service.events()[num_events:] if event["event"] == "job runs"]
    TrainerState.model_validate_json(json.dumps(service.state()))
    assert TOKEN not in service.log.read_text()  # K08


def test_H10_another_object_of_the_same_name_starts_anew(service: TrainerService, undisturbed: Path) -> None:
    service.start()
    (first,) = assign(service, "first")
    service.put(first)
    service.wait_for_step("first", 6)
    service.put(service.job("first", uid="first-uid-2", **JOBS["first"]))
    wait_for(lambda: service.report("first").get("uid") == "first-uid-2")
    service.wait_for_phase("first", "Succeeded")
    assert list_joins(service, "first") == [0, 0]
    expect_equal(service, undisturbed, "first")


def test_a_second_signal_ends_the_process_at_once(service: TrainerService) -> None:
    service.start()
    service.put(service.job("endless", maxSteps=100_000, globalBatchSize=64, rows=make_rows(64)))
    service.wait_for_phase("endless", "Running")
    os.kill(service.process.pid, signal.SIGTERM)
    wait_for(lambda: any(event["event"].startswith("stopping") for event in service.events()))
    os.kill(service.process.pid, signal.SIGTERM)
    assert service.wait() in (0, -signal.SIGTERM)
