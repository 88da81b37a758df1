"""A cluster ends whole, however its users or its keeper end, and two of them do not meet."""

import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import own
from cluster.access import ClusterAccess
from cluster.choice import Choice, chosen_cluster
from cluster.folders import ClusterFolder
from cluster.images.python_base import python_base_archive
from cluster.keep.control import ControlError
from cluster.keep.plan import write_files
from cluster.node.requirements import missing_for_node
from cluster.spec import ClusterSpec, Mode, Phase
from cluster.test_node import SERVE, apply, build_pod
from cluster.traces import find_keeper, find_processes, find_traces, machine_state

TIMEOUT_SECONDS = 60.0
TESTS_FOLDER = Path(__file__).parents[1]

# Starts a cluster, says its name, and would use it for a long time.
USER = """
import sys, time
from cluster import own
from cluster.spec import Mode
cluster = own.start_cluster(Mode(sys.argv[1]))
print(cluster.name, flush=True)
time.sleep(600)
"""

MODES = [
    pytest.param(Mode.API_SERVER, id="API server"),
    pytest.param(Mode.NODE, id="node", marks=pytest.mark.slow),
]


@pytest.fixture(autouse=True)
def _own_clusters(api_server: ClusterAccess) -> None:
    """Skip, with the reason, where `api_server` does; these tests are about clusters of this project's making."""
    if chosen_cluster() is not Choice.OWN:
        pytest.skip("E2E_CLUSTER is not own: this cluster's life is somebody else's")


@pytest.fixture
def started() -> Iterator[Callable[[Mode], own.OwnCluster]]:
    clusters: list[own.OwnCluster] = []

    def start(mode: Mode) -> own.OwnCluster:
        _need(mode)
        clusters.append(own.start_cluster(mode))
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.leave()


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_left_when_the_last_user_leaves(mode: Mode) -> None:
    _need(mode)
    before = machine_state()
    cluster = own.start_cluster(mode)
    other = own.join_cluster(cluster.name)
    assert other is not None
    if mode is Mode.NODE:
        _run_pod(cluster)
    assert machine_state()["filters"] == before["filters"]

    cluster.leave()
    time.sleep(1)  # long enough for a keeper that had miscounted
    assert other.kubectl("get", "--raw", "/readyz") == "ok"
    other.leave()

    _wait_until(lambda: find_traces(cluster) == [], lambda: find_traces(cluster))
    assert machine_state() == before


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_left_when_the_test_run_is_killed(mode: Mode) -> None:
    _need(mode)
    environment = {**os.environ, "PYTHONPATH": str(TESTS_FOLDER)}
    command = (sys.executable, "-c", USER, mode.value)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        name = user.stdout.readline().strip()
        cluster = own.join_cluster(name)
        assert cluster is not None
        cluster.leave()
        assert find_processes(cluster)
        user.kill()

    _wait_until(lambda: find_traces(cluster) == [], lambda: find_traces(cluster))


@pytest.mark.parametrize("mode", MODES)
def test_what_is_left_when_the_keeper_is_killed_goes_with_the_next_start(mode: Mode) -> None:
    _need(mode)
    cluster = own.start_cluster(mode)
    if mode is Mode.NODE:
        _run_pod(cluster)
    os.kill(find_keeper(cluster), signal.SIGKILL)
    cluster.leave()

    _wait_until(lambda: find_processes(cluster) == {}, lambda: find_processes(cluster))
    assert own.join_cluster(cluster.name) is None
    assert cluster.name in own.sweep_abandoned()
    assert find_traces(cluster) == []


def test_a_cluster_is_ended_by_name_while_it_is_used(started: Callable[[Mode], own.OwnCluster]) -> None:
    cluster = started(Mode.API_SERVER)

    own.end_cluster(cluster.name)

    assert find_traces(cluster) == []


def test_two_clusters_run_side_by_side(started: Callable[[Mode], own.OwnCluster]) -> None:
    first, second = started(Mode.API_SERVER), started(Mode.API_SERVER)
    first.kubectl("create", "namespace", "only-in-the-first")

    assert first.spec.api_url != second.spec.api_url
    assert second.kubectl("get", "namespace", "only-in-the-first", "--ignore-not-found") == ""
    assert {spec.name for spec, phase in own.list_clusters() if phase is Phase.READY} >= {first.name, second.name}


def test_the_api_server_is_stopped_and_started_and_forgets_nothing(
    started: Callable[[Mode], own.OwnCluster],
) -> None:
    cluster = started(Mode.API_SERVER)
    cluster.kubectl("create", "namespace", "kept")

    cluster.stop("kube-apiserver", signal.SIGKILL)
    assert "kube-apiserver" not in " ".join(find_processes(cluster).values())
    cluster.start("kube-apiserver")

    assert cluster.kubectl("get", "namespace", "kept", "--output=name").strip() == "namespace/kept"
    cluster.check_alive()


def test_a_request_that_makes_no_sense_is_answered(started: Callable[[Mode], own.OwnCluster]) -> None:
    cluster = started(Mode.API_SERVER)

    with pytest.raises(ControlError, match="start kubelet: kubelet: no such component; must be one of etcd, "):
        cluster.start("kubelet")
    with pytest.raises(ControlError, match="start etcd: etcd runs already"):
        cluster.start("etcd")


def test_a_part_that_dies_is_not_overlooked(started: Callable[[Mode], own.OwnCluster]) -> None:
    cluster = started(Mode.API_SERVER)
    (pid,) = [pid for pid, command in find_processes(cluster).items() if "kube-controller-manager" in command]

    os.kill(pid, signal.SIGKILL)

    def died() -> bool:
        try:
            cluster.check_alive()
        except own.ClusterError as error:
            return "'kube-controller-manager': -9" in str(error)
        return False

    _wait_until(died, lambda: "check_alive() raises nothing")


def test_a_cluster_that_cannot_start_says_which_part_and_how_its_log_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_files_and_break_one(folder: ClusterFolder, spec: ClusterSpec, now: datetime.datetime) -> None:
        write_files(folder, spec, now)
        (folder.data / "etcd").write_text("not a folder")

    monkeypatch.setattr(own, "write_files", write_files_and_break_one)

    with pytest.raises(own.ClusterError, match=r"(?s)etcd ended with status 1 before it served.*end of etcd\.log"):
        own.start_cluster(Mode.API_SERVER, "broken")

    _wait_until(lambda: own.join_cluster("broken") is None, lambda: "broken is still there")


def _need(mode: Mode) -> None:
    if mode is Mode.NODE and (missing := missing_for_node()):
        pytest.skip(missing)


def _run_pod(cluster: own.OwnCluster) -> None:
    cluster.load_image(python_base_archive())
    apply(cluster, "default", build_pod("server", SERVE))
    cluster.kubectl("wait", "pod/server", "--for=condition=Ready", "--timeout=90s")


def _wait_until(holds: Callable[[], bool], describe: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.1)
