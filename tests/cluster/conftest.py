"""Clusters for the tests in this folder."""

from cluster.fixtures import api_server, namespace, node_cluster

__all__ = ["api_server", "namespace", "node_cluster"]
