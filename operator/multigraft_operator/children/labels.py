"""Names, labels and owner of what belongs to a pool."""

from __future__ import annotations

import hashlib
from typing import Any

from multigraft.api.schema import API_VERSION
from multigraft_operator.observed import PoolView

MANAGED_BY = "multigraft-operator"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
POOL_LABEL = "multigraft.dev/pool"
ACCELERATOR_LABEL = "multigraft.dev/accelerator"
POOL_NAME_ANNOTATION = "multigraft.dev/pool-name"
DIGEST_ANNOTATION = "multigraft.dev/children-digest"
POD_SELECTOR = f"{MANAGED_BY_LABEL}={MANAGED_BY}"

MAX_LABEL_CHARS = 63
# A StatefulSet's pods carry `<name>-<10 characters>` as a label and `<name>-<ordinal>` as their own name.
MAX_SET_NAME_CHARS = MAX_LABEL_CHARS - 11
HASH_CHARS = 8


def shorten(name: str, max_chars: int) -> str:
    """Give `name`, or its beginning and a hash of the whole where it is too long or has dots (no DNS label has)."""
    label = name.replace(".", "-")
    if label == name and len(name) <= max_chars:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:HASH_CHARS]
    return f"{label[: max_chars - HASH_CHARS - 1].rstrip('-')}-{digest}"


def child_name(pool_name: str, suffix: str = "") -> str:
    """Name a child of a pool: unique among all pools of the namespace, and short enough for a StatefulSet."""
    return shorten(f"{pool_name}-{suffix}" if suffix else f"{pool_name}-trainer", MAX_SET_NAME_CHARS)


def pool_label(pool_name: str) -> str:
    """Give the label value that stands for a pool; the full name is in an annotation."""
    return shorten(pool_name, MAX_LABEL_CHARS)


def selector_of(pool_name: str) -> str:
    """Give the label selector of a pool's pods."""
    return f"{POD_SELECTOR},{POOL_LABEL}={pool_label(pool_name)}"


def build_labels(pool: PoolView) -> dict[str, str]:
    """Build the labels of every child of a pool."""
    return {
        "app.kubernetes.io/name": "multigraft-trainer",
        "app.kubernetes.io/component": "trainer",
        "app.kubernetes.io/part-of": "multigraft",
        MANAGED_BY_LABEL: MANAGED_BY,
        POOL_LABEL: pool_label(pool.key.name),
    }


def build_metadata(pool: PoolView, name: str) -> dict[str, Any]:
    """Build the metadata of a child; it goes with the pool."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": "BaseModelPool",
        "name": pool.key.name,
        "uid": pool.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": pool.key.namespace,
        "labels": build_labels(pool),
        "annotations": {POOL_NAME_ANNOTATION: pool.key.name},
        "ownerReferences": [owner],
    }
