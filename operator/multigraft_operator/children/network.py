"""How trainers are reached: a headless Service, and a NetworkPolicy that lets only the operator to the control port."""

from __future__ import annotations

from typing import Any

from multigraft_operator.children.labels import build_labels, build_metadata, child_name
from multigraft_operator.children.options import ChildOptions
from multigraft_operator.observed import PoolView


def build_service(pool: PoolView, options: ChildOptions) -> dict[str, Any]:
    """Build the headless Service that gives the pods their names."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": build_metadata(pool, child_name(pool.key.name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": build_labels(pool),
            "ports": [
                {"name": "control", "port": options.control_port, "targetPort": "control"},
                {"name": "metrics", "port": options.metrics_port, "targetPort": "metrics"},
            ],
        },
    }


def build_network_policy(pool: PoolView, options: ChildOptions) -> dict[str, Any]:
    """Build the NetworkPolicy; metrics are open to the cluster, since who scrapes is not ours to know."""
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": options.operator_namespace}},
        "podSelector": {"matchLabels": options.operator_labels},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": build_metadata(pool, child_name(pool.key.name)),
        "spec": {
            "podSelector": {"matchLabels": build_labels(pool)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [operator], "ports": [{"protocol": "TCP", "port": "control"}]},
                {"ports": [{"protocol": "TCP", "port": "metrics"}]},
            ],
        },
    }


def build_disruption_budget(pool: PoolView) -> dict[str, Any]:
    """Build the PodDisruptionBudget: a drain takes one trainer at a time, and waits for its checkpoint."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": build_metadata(pool, child_name(pool.key.name)),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": build_labels(pool)}},
    }
