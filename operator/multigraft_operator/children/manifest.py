"""The pool's manifest for its trainers: only what they read, so that other changes do not restart them."""

from __future__ import annotations

import json
from typing import Any

from multigraft_operator.children.labels import build_metadata, child_name
from multigraft_operator.observed import PoolView

FILE = "pool.json"
READ_BY_TRAINERS = ("baseModel", "backend", "gpu", "parallelism", "slots", "batching", "checkpoint", "storage")
SCHEDULING_READ_BY_TRAINERS = ("solverTimeoutSeconds", "horizonGlobalBatches")


def build_trainer_manifest(pool: PoolView) -> dict[str, Any]:
    """Build the BaseModelPool as a trainer reads it."""
    whole = pool.build_pool().model_dump(mode="json", by_alias=True, exclude_none=True)
    spec = whole["spec"]
    kept = {name: spec[name] for name in READ_BY_TRAINERS}
    kept["scheduling"] = {name: spec["scheduling"][name] for name in SCHEDULING_READ_BY_TRAINERS}
    metadata = {"name": pool.key.name, "namespace": pool.key.namespace, "uid": pool.uid}
    return {"apiVersion": whole["apiVersion"], "kind": whole["kind"], "metadata": metadata, "spec": kept}


def build_config_map(pool: PoolView) -> dict[str, Any]:
    """Build the ConfigMap that holds the manifest."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": build_metadata(pool, child_name(pool.key.name)),
        "data": {FILE: json.dumps(build_trainer_manifest(pool), sort_keys=True, indent=1)},
    }
