"""What of a job decides its weights: the part of a spec that a checkpoint and its job must have in common."""

from __future__ import annotations

import hashlib
import json
import re
from decimal import Decimal
from typing import Any

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.rules import DECIMAL_PATTERN, JsonObject

# It decides when a job gives up, not what it learns: a user may raise it and go on.
NOT_DECISIVE = ("maxNonfiniteSteps",)


def build_training_spec(job: AdapterJob, *, base_model: str, dataset_fingerprint: str) -> JsonObject:
    """Build the decisive part of a spec, in one spelling ("2e-4" and "0.0002" are the same number).

    Args:
        base_model: What identifies the base's weights, such as a hash or name and revision.
        dataset_fingerprint: `TokenisedDataset.fingerprint`: of the token ids and masks that are trained.
    """
    spec = job.spec.model_dump(mode="json", by_alias=True)
    training = {key: value for key, value in spec["training"].items() if key not in NOT_DECISIVE}
    lora = {**spec["lora"], "targetModules": sorted(set(spec["lora"]["targetModules"]))}
    return {
        "baseModel": base_model,
        "dataset": {"fingerprint": dataset_fingerprint},
        "lora": {key: _normalise(value) for key, value in lora.items()},
        "resumeFrom": spec["resumeFrom"],
        "training": {key: _normalise(value) for key, value in training.items()},
    }


def hash_spec(spec: JsonObject) -> str:
    """Give the SHA-256 of a spec, in hex."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def describe_difference(got: JsonObject, want: JsonObject) -> str:
    """List the fields that differ with both values; empty if the specs are equal."""
    flat_got, flat_want = _flatten(got), _flatten(want)
    absent = "absent"
    return "; ".join(
        f"{path}: {flat_got.get(path, absent)!r} there, {flat_want.get(path, absent)!r} now"
        for path in sorted(flat_got.keys() | flat_want.keys())
        if flat_got.get(path, absent) != flat_want.get(path, absent)
    )


def _normalise(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(DECIMAL_PATTERN, value):
        return str(Decimal(value).normalize())
    return value


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {
        key: leaf
        for name, child in value.items()
        for key, leaf in _flatten(child, f"{path}.{name}" if path else name).items()
    }
