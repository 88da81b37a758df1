"""The operator process against a real API server; trainers are fake but speak the real protocol over HTTP."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from builders.operator_run import OperatorRun, wait_until
from multigraft.api.control import TrainerJobPhase
from multigraft_operator.children.token import build_token


def count_writes(run: OperatorRun) -> float:
    """Count the operator's writes to objects; the Lease is renewed by PUT."""
    name = "multigraft_operator_api_requests_total"
    lines = [line for line in run.fetch("/metrics").splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if 'verb="GET"' not in line and 'verb="PUT"' not in line)


def versions(run: OperatorRun) -> dict[str, str]:
    found = [*run.list("adapterjobs"), *run.list("basemodelpools"), *run.list("pods"), *run.list("statefulsets")]
    return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in found}


def test_a_job_is_admitted_runs_and_succeeds(run: OperatorRun) -> None:
    run.start()
    run.create_pool()
    run.create_job()
    (trainer,) = run.run_pods()
    run.wait_for_phase("Running")
    job = run.get("adapterjob", "a")
    assert job["metadata"]["finalizers"] == ["multigraft.dev/loaded"]
    assert not any("kopf" in name for name in job["metadata"].get("annotations") or {})
    assert trainer.tokens == {build_token(b"k" * 32, run.get("basemodelpool", "tiny")["metadata"]["uid"])}
    trainer.finish(run.uid())
    run.wait_for_phase("Succeeded")
    run.kubectl("wait", "--for=condition=Succeeded", "adapterjob/a", "--timeout=10s")
    wait_until(lambda: not run.get("adapterjob", "a")["metadata"].get("finalizers"), "the finalizer is off")
    assert not trainer.has(run.uid())
    reasons = [event["reason"] for event in run.list("events") if event["involvedObject"]["name"] == "a"]
    assert {"SlotAssigned", "Training", "AdapterExported"} <= set(reasons)
    assert len(reasons) == len(set(reasons))
    assert run.stop() == 0


def test_children_are_made_once_and_hold_no_rights(run: OperatorRun) -> None:
    run.start()
    run.create_pool(replicas=2)
    run.run_pods(number=2)
    wait_until(lambda: run.condition("tiny", "Ready", "basemodelpool").get("status") == "True", "the pool is ready")
    for kind in ("statefulset", "service", "secret", "networkpolicy", "poddisruptionbudget"):
        assert len(run.list(kind)) == 1, kind
    assert all(pod["spec"]["automountServiceAccountToken"] is False for pod in run.list("pods"))
    token = build_token(b"k" * 32, run.get("basemodelpool", "tiny")["metadata"]["uid"])
    for kind in ("pods", "statefulsets", "configmaps", "events", "basemodelpools", "adapterjobs"):
        assert token not in json.dumps(run.list(kind)), f"K09: {kind}"
    assert token not in run.log, "K08"


def test_children_that_someone_changed_or_deleted_are_put_back(run: OperatorRun) -> None:
    run.start()
    run.create_pool()
    run.run_pods()
    (stateful_set,) = run.list("statefulset")
    name, service = stateful_set["metadata"]["name"], run.list("service")[0]["metadata"]["name"]
    run.kubectl("scale", "statefulset", name, "--replicas=3")
    wait_until(lambda: run.list("statefulset")[0]["spec"]["replicas"] == 1, "the StatefulSet is as it was")
    run.kubectl("delete", "service,secret,networkpolicy,poddisruptionbudget", "--all")
    for kind in ("service", "secret", "networkpolicy", "poddisruptionbudget"):
        wait_until(lambda kind=kind: run.list(kind), f"{kind} is back")
    run.kubectl("patch", "service", service, "--type=merge", '--patch={"spec":{"publishNotReadyAddresses":false}}')
    wait_until(lambda: run.list("service")[0]["spec"].get("publishNotReadyAddresses"), "the Service is as it was")
    run.kubectl("delete", "statefulset", name)
    wait_until(lambda: run.list("statefulset"), "the StatefulSet is back")


def test_H14_a_pool_over_its_namespaces_quota_says_so_and_starts_once_there_is_room(run: OperatorRun) -> None:
    run.kubectl("create", "quota", "small", "--hard=requests.cpu=500m")
    run.start()
    run.create_pool()
    run.create_job()
    wait_until(lambda: run.condition("tiny", "Degraded", "bmp").get("reason") == "QuotaExceeded", "the pool says so")
    wait_until(lambda: "exceeded quota: small" in run.condition("a", "Admitted")["message"], "the job says so")
    run.kubectl("delete", "quota", "small")
    (pods,) = [run.list("statefulset")[0]["metadata"]["name"]]
    run.kubectl("annotate", "statefulset", pods, "try=again")  # its controller pauses up to a quarter of an hour
    run.run_pods()
    run.wait_for_phase("Running")
    wait_until(lambda: run.condition("tiny", "Degraded", "bmp").get("status") == "False", "all is well")


def test_nothing_is_written_while_nothing_happens(run: OperatorRun) -> None:
    run.start("--reapply-seconds", "300")
    run.create_pool()
    for name in ("a", "b", "c"):
        run.create_job(name)
    run.run_pods()
    wait_until(lambda: sorted(map(run.phase, "abc")) == ["Queued", "Running", "Running"], "two run")
    time.sleep(2)
    before, written = versions(run), count_writes(run)
    time.sleep(8)
    assert versions(run) == before
    assert count_writes(run) == written


def test_R1_a_restarted_operator_changes_nothing(run: OperatorRun) -> None:
    run.start()
    run.create_pool()
    for name in ("a", "b", "c"):
        run.create_job(name)
    (trainer,) = run.run_pods()
    wait_until(lambda: sorted(map(run.phase, "abc")) == ["Queued", "Running", "Running"], "two run")
    time.sleep(2)
    before = {uid: version for uid, version in versions(run).items() if uid != run.uid_of("bmp", "tiny")}
    for epoch in (2, 3, 4):
        run.kill()
        run.start()
        wait_until(lambda epoch=epoch: trainer.trainer.epoch == epoch, "the next one has spoken")
        time.sleep(2)
    after = versions(run)
    assert {uid: after[uid] for uid in before} == before
    assert len(run.list("events")) == len({event["metadata"]["name"] for event in run.list("events")})


def test_who_waits_says_why(run: OperatorRun) -> None:
    run.start()
    run.create_pool()
    run.run_pods(slots=1)
    run.create_job("first")
    run.wait_for_phase("Running", "first")
    run.create_job("second")
    run.create_job("high", lora={"r": 128})
    run.create_job("lost", poolRef={"name": "nowhere"})
    wait_until(lambda: run.condition("second", "Admitted").get("reason") == "NoFreeSlot", "second waits")
    message = run.condition("second", "Admitted")["message"]
    assert message.startswith("needs 1 slot, 0 of 1 are free on 1 pods; held by ")
    assert f"{run.namespace}/first" in message
    wait_until(lambda: run.condition("high", "Admitted").get("reason") == "RankExceedsPool", "rank")
    wait_until(lambda: run.condition("lost", "Admitted").get("reason") == "PoolNotFound", "no pool")
    assert "Queued" in run.kubectl("get", "aj", "second")
    assert "NoFreeSlot" in run.kubectl("get", "aj", "second")


def test_H08_an_operator_killed_again_and_again_ends_with_the_same(run: OperatorRun) -> None:
    run.create_pool()
    for name in "abcd":
        run.create_job(name)
    run.start()
    (trainer,) = run.run_pods(slots=4)
    for pause in (0.9, 1.3, 1.7, 2.1):
        run.kill()
        run.start()
        time.sleep(pause)
    wait_until(lambda: all(run.phase(name) == "Running" for name in "abcd"), f"all run; log\n{run.log[-2000:]}", 90)
    uids = [run.uid(name) for name in "abcd"]
    for uid in uids:
        trainer.finish(uid)
        run.kill()
        run.start()
    wait_until(lambda: all(run.phase(name) == "Succeeded" for name in "abcd"), "all succeeded", 90)
    assert {attempt for _, attempt in trainer.ever} == {1}
    assert len(run.list("statefulset")) == 1
    epoch = run.get("lease", "multigraft-operator")["spec"]["leaseTransitions"]
    assert trainer.trainer.epoch == epoch


def bring_to(run: OperatorRun, phase: str) -> None:
    """Bring job `a` to a phase; "Unreachable": it runs, and its trainer answers no more."""
    if phase != "Pending":
        run.create_pool(drainTimeoutSeconds=5)
    run.create_job(backoffLimit=0, suspend=phase == "Suspended")
    if phase in {"Pending", "Queued", "Suspended"}:
        return run.wait_for_phase(phase)
    (trainer,) = run.run_pods()
    run.wait_for_phase("Running")
    if phase == "Unreachable":
        trainer.trainer.is_reachable = False
        return None
    if phase == "Checkpointing":
        trainer.trainer.is_slow_to_leave = True
        run.kubectl("patch", "adapterjob", "a", "--type=merge", '--patch={"spec":{"suspend":true}}')
    elif phase == "Failed":
        trainer.say(run.uid(), TrainerJobPhase.FAILED, reason="InvalidDataset", message="row 7: no messages")
    elif phase == "Succeeded":
        trainer.finish(run.uid())
    return run.wait_for_phase(phase)


PHASES = ["Pending", "Queued", "Suspended", "Running", "Checkpointing", "Failed", "Succeeded", "Unreachable"]


@pytest.mark.parametrize("phase", PHASES)
def test_R3_a_job_deleted_in_any_phase_goes(run: OperatorRun, phase: str) -> None:
    run.start()
    bring_to(run, phase)
    run.kubectl("delete", "adapterjob", "a", "--timeout=60s")
    if phase not in {"Checkpointing", "Unreachable"}:  # those keep it for as long as they like
        wait_until(lambda: not any(trainer.trainer.jobs for trainer in run.trainers.values()), "no trainer has it")


@pytest.mark.parametrize("phase", PHASES)
def test_R6_a_pool_deleted_while_its_job_is_in_any_phase_goes(run: OperatorRun, phase: str) -> None:
    run.start()
    bring_to(run, phase)
    if phase == "Pending":
        run.create_pool("tiny", replicas=0)
    run.kubectl("delete", "basemodelpool", "tiny", "--timeout=60s")
    wait_until(lambda: not run.list("statefulset"), "its children are gone")
    ended = phase in {"Failed", "Succeeded"}
    wait_until(lambda: ended or run.phase() in {"Pending", "Suspended", "Queued"}, f"the job waits: {run.phase()}")
    run.kubectl("delete", "adapterjob", "a", "--timeout=60s")


def test_H03_a_job_deleted_while_the_operator_is_down_goes_once_it_is_back(run: OperatorRun) -> None:
    run.start()
    run.create_pool()
    run.create_job()
    (trainer,) = run.run_pods()
    run.wait_for_phase("Running")
    run.stop()
    run.kubectl("delete", "adapterjob", "a", "--wait=false")
    assert run.get("adapterjob", "a")["metadata"]["deletionTimestamp"]
    run.start()
    wait_until(lambda: not run.get("adapterjob", "a"), "the job is gone", 60)
    assert not trainer.trainer.jobs


def test_R4_a_namespace_goes_with_all_that_is_in_it(run: OperatorRun) -> None:
    run.start()
    run.create_pool()
    run.create_job("a")
    run.create_job("b")
    run.run_pods()
    run.wait_for_phase("Running")
    run.cluster.kubectl("delete", "namespace", run.namespace, "--timeout=60s")


@pytest.mark.parametrize("policy", ["Drain", "Block"])
def test_R6_a_pool_is_deleted_as_its_policy_says(run: OperatorRun, policy: str) -> None:
    run.start()
    run.create_pool(deletionPolicy=policy)
    run.create_job()
    (trainer,) = run.run_pods()
    run.wait_for_phase("Running")
    run.kubectl("delete", "basemodelpool", "tiny", "--wait=false")
    if policy == "Block":
        wait_until(lambda: run.condition("tiny", "Draining", "bmp").get("reason") == "DeletionBlocked", "blocked")
        assert run.phase() == "Running"
        trainer.finish(run.uid())
    wait_until(lambda: not run.get("basemodelpool", "tiny"), "the pool is gone", 60)
    wait_until(lambda: not run.list("statefulset") and not run.list("pods"), "its children are gone", 60)
    if policy == "Drain":
        assert not trainer.trainer.jobs
    assert not run.get("adapterjob", "a")["metadata"].get("finalizers")


def test_R7_jobs_of_a_lost_pod_go_on_in_the_next(run: OperatorRun) -> None:
    run.start()
    run.create_pool()
    run.create_job()
    run.run_pods()
    run.wait_for_phase("Running")
    (pod,) = run.list("pods")
    run.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0")
    wait_until(lambda: run.condition("a", "Running").get("status") == "False", "not running any more")
    (second,) = run.run_pods()
    run.wait_for_phase("Running")
    assert second.has(run.uid())
    assert run.get("adapterjob", "a")["status"]["attempts"] == 1


def test_R9_R13_a_job_that_fails_for_good_stays_failed_and_tells_its_reason(run: OperatorRun) -> None:
    run.start()
    run.create_pool()
    run.create_job(backoffLimit=0, ttlSecondsAfterFinished=4)
    (trainer,) = run.run_pods()
    run.wait_for_phase("Running")
    trainer.say(run.uid(), TrainerJobPhase.FAILED, reason="InvalidDataset", message="row 7: no messages")
    run.wait_for_phase("Failed")
    assert run.condition("a", "Failed")["message"] == "row 7: no messages"
    wait_until(lambda: not run.get("adapterjob", "a"), "its time is over", 30)


def test_R18_a_lost_answer_changes_nothing(run: OperatorRun) -> None:
    run.start()
    run.create_pool()
    (trainer,) = run.run_pods()
    wait_until(lambda: run.condition("tiny", "Ready", "bmp").get("status") == "True", "ready")
    trainer.drop_answers = 3
    run.create_job()
    run.wait_for_phase("Running")
    assert trainer.ever == {(run.uid(), 1)}


def test_S6_a_killed_leader_is_followed_and_a_stale_epoch_is_overcome(run: OperatorRun) -> None:
    run.start()
    run.create_pool()
    (trainer,) = run.run_pods()
    wait_until(lambda: trainer.trainer.epoch == 1, "the first leader has spoken")
    run.kill()
    run.start()
    wait_until(lambda: trainer.trainer.epoch == 2, "the second leader has spoken", 30)
    trainer.trainer.epoch = 9  # as if the Lease had been deleted
    wait_until(lambda: trainer.trainer.epoch == 10, "the leader went above it", 30)
    assert run.get("lease", "multigraft-operator")["spec"]["leaseTransitions"] == 10


def test_probes_and_metrics(run: OperatorRun) -> None:
    run.start()
    run.create_job(poolRef={"name": "nowhere"})
    run.wait_for_phase("Pending")
    assert run.fetch("/healthz") == "ok\n"
    assert run.fetch("/readyz") == "ok\n"
    figures: dict[str, Any] = dict(line.rsplit(" ", 1) for line in run.fetch("/metrics").splitlines() if line[0] != "#")
    assert figures["multigraft_operator_leader"] == "1.0"
    wait_until(lambda: 'multigraft_operator_pending_jobs{reason="PoolNotFound"} 1.0' in run.fetch("/metrics"), "told")
    assert all(json.loads(line)["level"] for line in run.log.splitlines())
