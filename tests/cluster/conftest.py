"""Clusters for the tests in this folder."""

from builders.operator_fixtures import operator_cluster, run
from cluster.fixtures import api_server, namespace, node_cluster
from cluster.own_clusters import started

__all__ = ["api_server", "namespace", "node_cluster", "operator_cluster", "run", "started"]
