"""Clusters for tests. A conftest.py that wants them imports them from here.

    from cluster.fixtures import api_server, namespace, node_cluster

One cluster of each kind serves a whole test run, all xdist workers included: whoever needs it first starts
it, the others join, and its keeper ends it when the last has gone. Tests keep apart by namespaces.
"""

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.access import ClusterAccess, UnsupportedError
from cluster.choice import Choice, chosen_cluster, existing_cluster
from cluster.kind import missing_for_kind, start_kind
from cluster.locks import exclusive
from cluster.node.requirements import missing_for_node
from cluster.own import OwnCluster, join_cluster, start_cluster
from cluster.programs.build import ProgramsMissingError
from cluster.spec import Mode

LOGS_FOLDER = Path(__file__).parents[2] / "build" / "cluster-logs"


@pytest.fixture(scope="session")
def api_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAccess]:
    """Give a real API server with its controllers, but no node. Needs no root."""
    if chosen_cluster() is Choice.OWN:
        yield from _own(Mode.API_SERVER, request, tmp_path_factory)
    else:
        yield request.getfixturevalue("node_cluster")


@pytest.fixture(scope="session")
def node_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAccess]:
    """Give a whole cluster: pods run, services and names work, images can be loaded."""
    match chosen_cluster():
        case Choice.OWN:
            skip_or_fail(missing_for_node())
            yield from _own(Mode.NODE, request, tmp_path_factory)
        case Choice.KIND:
            skip_or_fail(missing_for_kind())
            yield from _kind(request)
        case Choice.EXISTING:
            yield existing_cluster()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Make namespaces in a cluster: `namespace(cluster)`, with labels if wanted; they go with the test."""
    made: list[tuple[ClusterAccess, str]] = []

    def make(cluster: ClusterAccess, **labels: str) -> str:
        name = f"t-{secrets.token_hex(4)}"
        cluster.kubectl("create", "namespace", name)
        made.append((cluster, name))
        if labels:
            cluster.kubectl("label", "namespace", name, *(f"{key}={value}" for key, value in labels.items()))
        return name

    yield make
    for cluster, name in made:
        cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def _own(mode: Mode, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCluster]:
    run = _run_id(request)
    name = f"{'n' if mode is Mode.NODE else 'a'}{hashlib.sha256(run.encode()).hexdigest()[:6]}"
    with exclusive(_shared_folder(request, tmp_path_factory) / f"{name}.lock"):
        try:
            cluster = join_cluster(name) or start_cluster(mode, name, keep=bool(os.environ.get("KEEP_CLUSTER")))
        except ProgramsMissingError as error:
            skip_or_fail(str(error))
    try:
        yield cluster
        cluster.check_alive()
    finally:
        _keep_logs_of_failures(cluster, request)
        cluster.leave()


def _kind(request: pytest.FixtureRequest) -> Iterator[ClusterAccess]:
    # Each worker has its own: kind takes a minute and its clusters do not mind each other.
    cluster = start_kind(f"multigraft-{secrets.token_hex(3)}")
    try:
        yield cluster
    finally:
        _keep_logs_of_failures(cluster, request)
        if not os.environ.get("KEEP_CLUSTER"):
            cluster.end()


def _run_id(request: pytest.FixtureRequest) -> str:
    """Return what all workers of one test run have in common and no other run has."""
    worker = getattr(request.config, "workerinput", None)
    return str(worker["testrunuid"]) if worker else secrets.token_hex(8)


def _shared_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(request.config, "workerinput") else own


def _keep_logs_of_failures(cluster: ClusterAccess, request: pytest.FixtureRequest) -> None:
    if request.session.testsfailed:
        cluster.collect_logs(LOGS_FOLDER / cluster.name)


def load_or_skip(cluster: ClusterAccess, archive: Path) -> None:
    """Load an image; skip the test where the cluster takes images from a registry only."""
    try:
        cluster.load_image(archive)
    except UnsupportedError as error:
        pytest.skip(str(error))


def skip_or_fail(reason: str) -> None:
    """Skip the test with a reason, if there is one; fail instead where the run must not pass without a cluster."""
    if not reason:
        return
    if os.environ.get("REQUIRE_CLUSTER"):
        pytest.fail(f"REQUIRE_CLUSTER is set, but {reason}")
    pytest.skip(reason)
