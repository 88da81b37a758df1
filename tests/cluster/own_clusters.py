"""Clusters that one test has for itself, to end or to break."""

from collections.abc import Callable, Iterator

import pytest

from cluster import own
from cluster.choice import Choice, chosen_cluster
from cluster.fixtures import skip_or_fail
from cluster.node.requirements import missing_for_node
from cluster.programs.build import ProgramsMissingError
from cluster.programs.locate import API_SERVER_PROGRAMS, NODE_PROGRAMS, locate_programs
from cluster.spec import Mode


def need(mode: Mode) -> None:
    """Skip the test, with the reason, where no cluster of this kind can be made."""
    if chosen_cluster() is not Choice.OWN:
        pytest.skip("E2E_CLUSTER is not own: this cluster's life is somebody else's")
    if mode is Mode.NODE:
        skip_or_fail(missing_for_node())
    try:
        locate_programs(NODE_PROGRAMS if mode is Mode.NODE else API_SERVER_PROGRAMS)
    except ProgramsMissingError as error:
        skip_or_fail(str(error))


@pytest.fixture
def started() -> Iterator[Callable[[Mode], own.OwnCluster]]:
    """Start clusters: `started(Mode.NODE)`; they end with the test."""
    clusters: list[own.OwnCluster] = []

    def start(mode: Mode) -> own.OwnCluster:
        need(mode)
        clusters.append(own.start_cluster(mode))
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.leave()
