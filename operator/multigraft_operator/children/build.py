"""All children of a pool in the order in which they are applied: the StatefulSet last, which says that all is there."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from multigraft_operator.children.labels import DIGEST_ANNOTATION
from multigraft_operator.children.manifest import build_config_map
from multigraft_operator.children.network import build_disruption_budget, build_network_policy, build_service
from multigraft_operator.children.options import ChildOptions
from multigraft_operator.children.stateful_set import build_stateful_set
from multigraft_operator.children.token import build_token_secret
from multigraft_operator.observed import PoolView


def build_children(pool: PoolView, options: ChildOptions, key: bytes) -> list[dict[str, Any]]:
    """Build all children of a pool whose spec is readable."""
    assert pool.spec is not None  # noqa: S101
    children = [
        build_config_map(pool),
        build_token_secret(pool, key),
        build_service(pool, options),
        build_network_policy(pool, options),
        build_disruption_budget(pool),
    ]
    # The most preferred kind gets all replicas; falling back to the next is not decided yet (docs/operator.md).
    stateful_set = build_stateful_set(pool, pool.spec.gpu.accelerators[0], options)
    digest = digest_children([*children, stateful_set])
    stateful_set["metadata"]["annotations"] = {**stateful_set["metadata"]["annotations"], DIGEST_ANNOTATION: digest}
    return [*children, stateful_set]


def digest_children(children: list[dict[str, Any]]) -> str:
    """Give a hash of what was built."""
    return hashlib.sha256(json.dumps(children, sort_keys=True).encode()).hexdigest()[:16]


def find_digest(children: list[dict[str, Any]]) -> str:
    """Give the digest that `build_children` wrote on the last child."""
    return str(children[-1]["metadata"]["annotations"][DIGEST_ANNOTATION])
