"""What of pool and job a local run does not use, in one line each, in place of silence. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.schema import Spec

_NO_SECRETS = "credentials come from the environment"
_POOL_FIELDS = {
    "base_model.secret_ref": _NO_SECRETS,
    "gpu.resource_name": "",
    "gpu.product_label": "",
    "replicas": "one process runs here",
    "template": "",
    "drain_timeout_seconds": "",
    "deletion_policy": "",
}
_JOB_FIELDS = {
    "dataset.secret_ref": _NO_SECRETS,
    "backoff_limit": "--resume tries failed jobs again",
    "ttl_seconds_after_finished": "results stay until they are deleted",
}


def note_pool(pool: BaseModelPool, *, device: str, device_name: str) -> tuple[str, ...]:
    """Say which fields of the pool are passed over, and that it trains on another device than it names.

    Args:
        device: `cpu` or `cuda`, as chosen.
        device_name: What the device calls itself, such as `NVIDIA H200`.
    """
    notes = _note(f"pool {pool.key}", pool.spec, _POOL_FIELDS)
    wanted = pool.spec.gpu.accelerators
    names = [accelerator.name for accelerator in wanted]
    shown = f"pool {pool.key}: spec.gpu.accelerators names {', '.join(names)}"
    if device == "cpu" and "CPU" not in names:
        notes.append(f"{shown}; there is no GPU here, so it trains on the CPU")
    if device != "cpu" and not any(name in device_name for name in names):
        notes.append(f"{shown}; it trains on {device_name}, the GPU that is here")
    if any(accelerator.count > 1 for accelerator in wanted):
        notes.append(f"pool {pool.key}: spec.gpu.accelerators counts several devices; one is used")
    return tuple(notes)


def note_job(job: AdapterJob) -> tuple[str, ...]:
    """Say which fields of the job are passed over."""
    return tuple(_note(job.key, job.spec, _JOB_FIELDS))


def _note(what: str, spec: Spec, fields: Mapping[str, str]) -> list[str]:
    found = [text for path, why in fields.items() for text in _tell(spec, path, why)]
    return [f"{what}: not used in a local run: {', '.join(found)}"] if found else []


def _tell(spec: Spec, path: str, why: str) -> Iterator[str]:
    parent: Any = spec
    *sections, name = path.split(".")
    names = ["spec"]
    for section in sections:
        names.append(type(parent).model_fields[section].alias or section)
        parent = getattr(parent, section)
    info, value = type(parent).model_fields[name], getattr(parent, name)
    if value == info.get_default(call_default_factory=True, validated_data={}):
        return
    shown = f" {value}" if isinstance(value, int) else ""
    yield ".".join([*names, info.alias or name]) + shown + (f" ({why})" if why else "")
