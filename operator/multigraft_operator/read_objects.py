"""Read the API server's objects into views; what cannot be read says why and harms nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from multigraft.api.adapter_job import AdapterJobSpec
from multigraft.api.adapter_job_status import AdapterJobStatus
from multigraft.api.base_model_pool import BaseModelPoolSpec
from multigraft.api.base_model_pool_status import BaseModelPoolStatus
from multigraft.api.condition_reasons import PoolReason
from multigraft_operator.children.labels import ACCELERATOR_LABEL, POOL_NAME_ANNOTATION
from multigraft_operator.condition_list import parse_time
from multigraft_operator.observed import JobView, Key, PodProblem, PodView, PoolView

IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
BAD_CONFIGURATION = 2  # a trainer's exit code (docs/control-api.md)
STARTING = frozenset({"ContainerCreating", "PodInitializing", ""})
Model = TypeVar("Model", bound=BaseModel)


def key_of(raw: Mapping[str, Any]) -> Key:
    """Give namespace and name."""
    return Key(raw["metadata"].get("namespace", ""), raw["metadata"]["name"])


def read_job(raw: Mapping[str, Any]) -> JobView:
    """Read an AdapterJob."""
    spec, error = _read(AdapterJobSpec, raw.get("spec") or {})
    status, _ = _read(AdapterJobStatus, raw.get("status") or {})
    return JobView(**_read_meta(raw), error=error, spec=spec, status=status or AdapterJobStatus())


def read_pool(raw: Mapping[str, Any]) -> PoolView:
    """Read a BaseModelPool."""
    spec, error = _read(BaseModelPoolSpec, raw.get("spec") or {})
    status, _ = _read(BaseModelPoolStatus, raw.get("status") or {})
    return PoolView(**_read_meta(raw), error=error, spec=spec, status=status or BaseModelPoolStatus())


def _read(model: type[Model], content: Mapping[str, Any]) -> tuple[Model | None, str]:
    try:
        return model.model_validate(content), ""
    except ValidationError as error:
        first = error.errors()[0]
        return None, f"spec.{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def _read_meta(raw: Mapping[str, Any]) -> dict[str, Any]:
    metadata = raw["metadata"]
    deleted = metadata.get("deletionTimestamp")
    return {
        "key": key_of(raw),
        "uid": metadata["uid"],
        "generation": metadata.get("generation", 0),
        "resource_version": metadata["resourceVersion"],
        "created_at": parse_time(metadata["creationTimestamp"]),
        "deleted_at": parse_time(deleted) if deleted else None,
        "finalizers": tuple(metadata.get("finalizers") or ()),
        "labels": metadata.get("labels") or {},
    }


def read_pod(raw: Mapping[str, Any], pool_names: Mapping[str, str]) -> PodView | None:
    """Read a trainer pod; None if it is of no known pool.

    Args:
        pool_names: Name of the pool by uid of the StatefulSet that owns the pod.
    """
    metadata, status = raw["metadata"], raw.get("status") or {}
    owners = metadata.get("ownerReferences") or []
    pool = next((pool_names[owner["uid"]] for owner in owners if owner["uid"] in pool_names), None)
    if pool is None:
        return None
    return PodView(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        pool=pool,
        created_at=parse_time(metadata["creationTimestamp"]),
        accelerator=(metadata.get("labels") or {}).get(ACCELERATOR_LABEL, ""),
        node=(raw.get("spec") or {}).get("nodeName") or "",
        address=status.get("podIP") or "",
        is_terminating="deletionTimestamp" in metadata,
        has_ended=status.get("phase") in {"Succeeded", "Failed"},
        problem=find_problem(status),
    )


def find_problem(status: Mapping[str, Any]) -> PodProblem | None:
    """Say why a pod does not run, if the kubelet or the scheduler says so."""
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("reason") == "DeletionByTaintManager":
            return PodProblem(PoolReason.NODE_LOST, condition.get("message", ""))
    if status.get("reason") == "NodeLost":
        return PodProblem(PoolReason.NODE_LOST, status.get("message", ""))
    for container in status.get("containerStatuses") or []:
        problem = _find_container_problem(container)
        if problem is not None:
            return problem
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return PodProblem(PoolReason.UNSCHEDULABLE, condition.get("message", ""))
    return None


def _find_container_problem(container: Mapping[str, Any]) -> PodProblem | None:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in IMAGE_REASONS:
        return PodProblem(PoolReason.IMAGE_PULL_FAILED, message or reason)
    ended = (container.get("lastState") or {}).get("terminated") or {}
    if reason in STARTING and not waiting:
        return None
    if ended.get("reason") == "OOMKilled":
        return PodProblem(PoolReason.OUT_OF_MEMORY, f"exit code {ended.get('exitCode')}; {message}")
    if ended.get("exitCode") == BAD_CONFIGURATION:
        reason, text = read_last_words(ended.get("message") or "")
        return PodProblem(reason, f"exit code {BAD_CONFIGURATION}, no use to try again unchanged: {text}"[:512])
    if reason not in STARTING:
        last = f"; exit code {ended['exitCode']}: {ended.get('message', '')}" if "exitCode" in ended else ""
        return PodProblem(PoolReason.POD_FAILING, f"{reason}: {message}{last}"[:512])
    return None


def read_last_words(text: str) -> tuple[str, str]:
    """Read a trainer's termination message, `{"reason", "message"}`; what is not one is taken as it is."""
    try:
        words = json.loads(text)
        return str(words["reason"]), str(words["message"])
    except (ValueError, KeyError, TypeError):
        return PoolReason.POD_FAILING, text or "it left no message"


def read_refusal(events: Sequence[Mapping[str, Any]]) -> PodProblem | None:
    """Say why a StatefulSet's pods could not be made, from its newest event FailedCreate; None without one."""
    newest = max(events, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "", default=None)
    if newest is None:
        return None
    text = str(newest.get("message", ""))[:512]
    is_quota = "exceeded quota" in text or "failed quota" in text
    return PodProblem(PoolReason.QUOTA_EXCEEDED if is_quota else PoolReason.POD_FAILING, text)


def read_pool_of_set(raw: Mapping[str, Any]) -> str | None:
    """Give the name of the pool that a StatefulSet belongs to."""
    name = (raw["metadata"].get("annotations") or {}).get(POOL_NAME_ANNOTATION)
    return str(name) if name else None
