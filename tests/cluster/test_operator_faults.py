"""The operator while things break: killed between writes, down, without a whole API server, with a rival."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.api_proxy import ApiProxy
from builders.operator_fixtures import install_kinds
from builders.operator_run import OperatorRun, wait_until
from cluster.own import OwnCluster
from cluster.spec import Mode

pytestmark = pytest.mark.slow
KILLS = 30


def holders(run: OperatorRun) -> dict[str, int]:
    """Count, by uid of a job, the trainers that were ever told of it."""
    told = [uid for trainer in run.trainers.values() for uid in {uid for uid, _ in trainer.ever}]
    return {uid: told.count(uid) for uid in told}


def test_an_operator_killed_between_any_two_writes_trains_each_job_once(run: OperatorRun, tmp_path: Path) -> None:
    names = [f"job-{number}" for number in range(8)]
    with ApiProxy(run.cluster.kubeconfig, tmp_path) as proxy:
        killed = threading.Event()
        kills: list[int] = []
        began = [0]  # writes before each process

        def kill(number: int, before: bool) -> None:
            """Kill at the first to the eighth write of a process' life, in turn, just before and just after it."""
            at, wants_before = len(kills) // 2 % 8 + 1, len(kills) % 2 == 0
            if len(kills) < KILLS and not killed.is_set() and number - began[-1] >= at and before == wants_before:
                kills.append(number)
                run.kill()
                killed.set()

        proxy.on_write = kill
        run.start(kubeconfig=proxy.kubeconfig)
        stop = threading.Event()

        def restart() -> None:
            while not stop.is_set():
                if killed.wait(0.1):
                    began.append(proxy.num_writes)
                    killed.clear()
                    run.start(kubeconfig=proxy.kubeconfig)

        reviver = threading.Thread(target=restart)
        reviver.start()
        try:
            run.create_pool(replicas=2)
            for name in names:
                run.create_job(name)
            run.run_pods(number=2, slots=4)
            wait_until(lambda: all(run.phase(name) == "Running" for name in names), f"all run; {len(kills)} kills", 240)
            for trainer in run.trainers.values():
                for uid in list(trainer.trainer.jobs):
                    trainer.finish(uid)
            wait_until(lambda: all(run.phase(n) == "Succeeded" for n in names), f"all end; {len(kills)} kills", 240)
            wait_until(lambda: not any(i["metadata"].get("finalizers") for i in run.list("adapterjobs")), "off", 60)
        finally:
            stop.set()
            reviver.join()
            run.kill()  # before the proxy goes
    assert len(kills) == KILLS, "the scenario has fewer writes than were meant to be interrupted"
    assert {attempt for trainer in run.trainers.values() for _, attempt in trainer.ever} == {1}
    assert holders(run) == {run.uid(name): 1 for name in names}
    assert len(run.list("statefulset")) == 1


def test_an_operator_that_was_down_for_the_whole_training_finds_the_result(run: OperatorRun) -> None:
    run.start()
    run.create_pool()
    run.create_job()
    (trainer,) = run.run_pods()
    run.wait_for_phase("Running")
    run.kill()
    trainer.finish(run.uid())
    assert run.phase() == "Running"
    run.start()
    run.wait_for_phase("Succeeded")
    assert run.get("adapterjob", "a")["status"]["output"]["uri"] == f"/output/{run.uid()}"
    assert trainer.ever == {(run.uid(), 1)}


@pytest.mark.parametrize("fault", ["410", "500", "stall"])
def test_R20_a_broken_watch_hides_nothing_for_long(run: OperatorRun, tmp_path: Path, fault: str) -> None:
    with ApiProxy(run.cluster.kubeconfig, tmp_path) as proxy:
        run.start(kubeconfig=proxy.kubeconfig)
        run.create_pool()
        run.create_job("a")
        (trainer,) = run.run_pods()
        run.wait_for_phase("Running", "a")
        proxy.watch_fault = fault
        run.create_job("b")
        run.wait_for_phase("Running", "b", 30)
        run.kubectl("delete", "adapterjob", "a", "--timeout=30s")
        wait_until(lambda: len(trainer.trainer.jobs) == 1, "the deleted job left its trainer", 30)
        proxy.watch_fault = ""
        run.create_job("c")
        run.wait_for_phase("Running", "c", 30)
        assert proxy.num_faults > 0
        run.kill()


def test_R20_an_api_server_that_is_restarted_costs_nothing(
    started: Callable[[Mode], OwnCluster], tmp_path: Path
) -> None:
    cluster = started(Mode.API_SERVER)
    install_kinds(cluster)
    cluster.kubectl("create", "namespace", "own")
    with OperatorRun(cluster, "own", tmp_path) as run:
        run.start()
        run.create_pool()
        run.create_job("a")
        (trainer,) = run.run_pods()
        run.wait_for_phase("Running", "a")
        cluster.stop("kube-apiserver", signal.SIGKILL)
        trainer.finish(next(iter(trainer.trainer.jobs)))
        cluster.start("kube-apiserver")
        run.create_job("b")

        def is_done() -> bool:
            run.start_again_if_ended()  # as the kubelet does: after 10 s without a Lease it ends itself
            return run.phase("a") == "Succeeded" and run.phase("b") == "Running"

        wait_until(is_done, f"both as they are; {run.log[-1500:]}", 60)
        assert trainer.ever == {(run.uid("a"), 1), (run.uid("b"), 1)}


def test_S6_a_standby_takes_over_and_a_stopped_leader_writes_nothing_when_it_wakes(
    run: OperatorRun, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    run.start("--identity", "first")
    run.create_pool()
    run.create_job("a")
    (trainer,) = run.run_pods()
    run.wait_for_phase("Running", "a")
    with OperatorRun(run.cluster, run.namespace, tmp_path / "second", control_port=run.control_port) as second:
        second.start("--identity", "second")
        wait_until(second.is_ready, "the standby is ready")
        assert trainer.trainer.epoch == 1
        run.signal(signal.SIGSTOP)
        wait_until(lambda: trainer.trainer.epoch == 2, "the standby leads", 30)
        run.create_job("b")
        run.wait_for_phase("Running", "b")
        before = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in run.list("adapterjobs")}
        refused = trainer.refused
        run.signal(signal.SIGCONT)
        assert run.wait_for_end() == 1
        after = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in run.list("adapterjobs")}
        assert after == before
        assert trainer.trainer.epoch == 2
        assert trainer.refused <= refused + 1
        second.kill()
