"""A cluster ends whole, however its users or its keeper end, and two of them do not meet."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster import own
from cluster.node.containerd import PAUSE_IMAGE
from cluster.own_clusters import need
from cluster.spec import Mode, Phase
from cluster.traces import find_keeper, find_processes, find_traces, machine_state
from cluster.waiting import wait_until

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


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_left_when_the_last_user_leaves(mode: Mode) -> None:
    need(mode)
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

    wait_until(lambda: find_traces(cluster) == [], lambda: find_traces(cluster))
    assert machine_state() == before


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_left_when_the_test_run_is_killed(mode: Mode) -> None:
    need(mode)
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

    wait_until(lambda: find_traces(cluster) == [], lambda: find_traces(cluster))


@pytest.mark.parametrize("mode", MODES)
def test_what_is_left_when_the_keeper_is_killed_goes_with_the_next_start(mode: Mode) -> None:
    need(mode)
    cluster = own.start_cluster(mode)
    if mode is Mode.NODE:
        _run_pod(cluster)
    os.kill(find_keeper(cluster), signal.SIGKILL)
    cluster.leave()

    wait_until(lambda: find_processes(cluster) == {}, lambda: find_processes(cluster))
    assert own.join_cluster(cluster.name) is None
    own.sweep_abandoned()
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


def _run_pod(cluster: own.OwnCluster) -> None:
    cluster.kubectl("run", "waiting", f"--image={PAUSE_IMAGE}", "--image-pull-policy=Never")
    cluster.kubectl("wait", "pod/waiting", "--for=condition=Ready", "--timeout=90s")
