from __future__ import annotations

from typing import Any

import pytest

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.base_model_pool import BaseModelPool
from multigraft_trainer.local_run.passed_over import note_job, note_pool

CPU = {"accelerators": [{"name": "CPU"}]}


def make_pool(**spec: Any) -> BaseModelPool:
    body = {"baseModel": {"storageUri": "base", **spec.pop("baseModel", {})}, "gpu": CPU, **spec}
    head = {"apiVersion": "multigraft.dev/v1alpha1", "kind": "BaseModelPool", "metadata": {"name": "tiny"}}
    return BaseModelPool.model_validate({**head, "spec": body})


def make_job(dataset: dict[str, Any] | None = None, **spec: Any) -> AdapterJob:
    head = {"apiVersion": "multigraft.dev/v1alpha1", "kind": "AdapterJob", "metadata": {"name": "one"}}
    body = {"poolRef": {"name": "tiny"}, "dataset": {"storageUri": "a", **(dataset or {})}, "training": {"maxSteps": 1}}
    return AdapterJob.model_validate({**head, "spec": {**body, **spec}})


@pytest.mark.parametrize(
    "spec, want",
    [
        ({}, []),
        ({"replicas": 1}, []),
        ({"replicas": 3}, ["spec.replicas 3 (one process runs here)"]),
        ({"replicas": 0}, ["spec.replicas 0"]),
        ({"baseModel": {"secretRef": {"name": "hub"}}}, ["spec.baseModel.secretRef (credentials come from the env"]),
        ({"template": {"nodeSelector": {"a": "b"}}}, ["spec.template"]),
        ({"drainTimeoutSeconds": 5, "deletionPolicy": "Force"}, ["spec.drainTimeoutSeconds 5, spec.deletionPolicy"]),
        ({"gpu": {"accelerators": [{"name": "H100"}]}}, ["names H100; there is no GPU here, so it trains on the CPU"]),
        ({"gpu": {"accelerators": [{"name": "H100"}, {"name": "CPU"}]}}, []),
        ({"gpu": {"accelerators": [{"name": "CPU", "count": 2}]}}, ["one is used"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else str(value),
)
def test_what_of_a_pool_is_not_used_is_said_in_one_line(spec: dict[str, Any], want: list[str]) -> None:
    notes = note_pool(make_pool(**spec), device="cpu", device_name="CPU")
    assert len(notes) == len(want), notes
    assert all(text in note and "pool default/tiny" in note for note, text in zip(notes, want, strict=True))


def test_another_gpu_than_the_pool_names_is_said() -> None:
    pool = make_pool(gpu={"accelerators": [{"name": "H100"}]})
    assert "trains on NVIDIA H200" in note_pool(pool, device="cuda", device_name="NVIDIA H200")[0]
    assert note_pool(pool, device="cuda", device_name="NVIDIA H100 80GB HBM3") == ()


@pytest.mark.parametrize(
    "spec, want",
    [
        ({}, ""),
        ({"priority": 3, "activeDeadlineSeconds": 9, "suspend": True}, ""),
        ({"ttlSecondsAfterFinished": 60}, "spec.ttlSecondsAfterFinished 60"),
        ({"ttlSecondsAfterFinished": 0, "backoffLimit": 0}, "spec.backoffLimit 0 (--resume"),
        ({"dataset": {"secretRef": {"name": "s3"}}}, "spec.dataset.secretRef (credentials"),
    ],
    ids=["nothing", "what is honoured", "ttl", "ttl and retries", "secret"],
)
def test_what_of_a_job_is_not_used_is_said_in_one_line(spec: dict[str, Any], want: str) -> None:
    notes = note_job(make_job(**spec))
    assert len(notes) == bool(want)
    assert all(want in note for note in notes)
