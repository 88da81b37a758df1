"""The cluster of these tests."""

from cluster.fixtures import node_cluster

__all__ = ["node_cluster"]
