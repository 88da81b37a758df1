"""Clusters for the tests in this folder."""

from cluster.fixtures import api_server, namespace, node_cluster
from cluster.own_clusters import started

__all__ = ["api_server", "namespace", "node_cluster", "started"]
