"""Parts of a cluster are stopped, die, or never start: on purpose, and none of it goes unnoticed."""

import datetime
import os
import signal
from collections.abc import Callable

import pytest

from cluster import own
from cluster.folders import ClusterFolder
from cluster.keep.control import ControlError
from cluster.keep.plan import write_files
from cluster.spec import ClusterSpec, Mode
from cluster.traces import find_processes
from cluster.waiting import wait_until


def test_the_api_server_is_stopped_and_started_and_forgets_nothing(
    started: Callable[[Mode], own.OwnCluster],
) -> None:
    cluster = started(Mode.API_SERVER)
    cluster.kubectl("create", "namespace", "kept")

    cluster.stop("kube-apiserver", signal.SIGKILL)
    assert "kube-apiserver" not in " ".join(find_processes(cluster).values())
    cluster.start("kube-apiserver")

    # Controllers that the stop has killed are back: only they can finish this.
    cluster.kubectl("create", "namespace", "gone")
    cluster.kubectl("delete", "namespace", "gone", "--timeout=60s")
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

    wait_until(died, lambda: "check_alive() raises nothing")


def test_a_cluster_that_cannot_start_says_which_part_and_how_its_log_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_files_and_break_one(folder: ClusterFolder, spec: ClusterSpec, now: datetime.datetime) -> None:
        write_files(folder, spec, now)
        (folder.data / "etcd").write_text("not a folder")

    monkeypatch.setattr(own, "write_files", write_files_and_break_one)

    with pytest.raises(own.ClusterError, match=r"(?s)etcd ended with status 1 before it served.*end of etcd\.log"):
        own.start_cluster(Mode.API_SERVER, "broken")

    wait_until(lambda: own.join_cluster("broken") is None, lambda: "broken is still there")


@pytest.mark.slow
def test_a_node_whose_kubelet_stops_is_noticed_and_comes_back(started: Callable[[Mode], own.OwnCluster]) -> None:
    cluster = started(Mode.NODE)
    node = f"node/{cluster.spec.node_name}"

    cluster.stop("kubelet")
    cluster.kubectl("wait", node, "--for=condition=Ready=Unknown", "--timeout=60s")

    cluster.start("kubelet")
    cluster.kubectl("wait", node, "--for=condition=Ready", "--timeout=60s")
    cluster.check_alive()
