"""Fixtures of the tests that run the operator as a process; tests/cluster/conftest.py imports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builders.operator_run import OperatorRun
from cluster.access import ClusterAccess

CRDS = Path(__file__).parents[2] / "crds"
KINDS = ("adapterjobs.multigraft.dev", "basemodelpools.multigraft.dev")


@pytest.fixture(scope="session")
def operator_cluster(api_server: ClusterAccess) -> ClusterAccess:
    """Give an API server that knows our kinds."""
    install_kinds(api_server)
    return api_server


def install_kinds(cluster: ClusterAccess) -> None:
    """Tell a cluster of our kinds."""
    cluster.kubectl("apply", "--server-side", f"--filename={CRDS}")
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{kind}" for kind in KINDS))


@pytest.fixture
def run(operator_cluster: ClusterAccess, namespace: Callable[..., str], tmp_path: Path) -> Iterator[OperatorRun]:
    """Give an operator that is not started yet, in a namespace of its own."""
    with OperatorRun(operator_cluster, namespace(operator_cluster), tmp_path) as run:
        yield run
