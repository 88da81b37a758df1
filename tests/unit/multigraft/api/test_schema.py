"""The models themselves: strict, with their rules, whatever reads the manifest."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from multigraft.api.adapter_job import AdapterJob, Lora, LrSchedulerType, Training
from multigraft.api.base_model_pool import BaseModelPool, Slots
from multigraft.api.pod_template import EnvVar, PodTemplate, ResourceRequirements, Toleration
from multigraft.api.schema import MAX_ANNOTATION_BYTES, ObjectMeta, Spec, parse_decimal, update_rules_of, write_default


def errors_of(model: type[Any], value: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    return [(error["loc"], error["msg"]) for error in caught.value.errors()]


def test_rules_hold_without_the_manifest_reader() -> None:
    assert errors_of(Training, {"maxSteps": 3, "numTrainEpochs": 1, "warmupSteps": 4, "learningRate": "0"}) == [
        ((), "exactly one of maxSteps, numTrainEpochs must be given"),
        (("warmupSteps",), "want warmupSteps <= maxSteps, got 4 and 3"),
        (("learningRate",), 'want a decimal string > 0, got "0"'),
    ]


def test_broken_rules_of_inner_objects_are_told_together() -> None:
    value = {"env": [{"name": "A"}, {"name": "A", "value": "b"}], "tolerations": [{}]}
    assert [where for where, _ in errors_of(PodTemplate, value)] == [("tolerations", 0, "operator"), ("env", 0)]


@pytest.mark.parametrize(
    "model, value, field",
    [
        (Lora, {"r": "8"}, "r"),
        (Lora, {"r": 8.0}, "r"),
        (Lora, {"r": True}, "r"),
        (Lora, {"loraAlpha": 16}, "loraAlpha"),
        (Lora, {"useRslora": 1}, "useRslora"),
        (Slots, {"max": 0}, "max"),
        (ResourceRequirements, {"limits": {"cpu": 0.5}}, "limits"),
        (EnvVar, {"name": "1A", "value": ""}, "name"),
        (Toleration, {"operator": "exists"}, "operator"),
    ],
)
def test_nothing_is_coerced(model: type[Spec], value: dict[str, Any], field: str) -> None:
    assert errors_of(model, value)[0][0][0] == field


def test_enums_are_read_from_their_text() -> None:
    assert (
        Training.model_validate({"maxSteps": 1, "lrSchedulerType": "Cosine"}).lr_scheduler_type
        is LrSchedulerType.COSINE
    )


def test_fields_go_by_attribute_name_in_code_and_by_camel_case_in_manifests() -> None:
    assert Training(max_steps=3) == Training.model_validate({"maxSteps": 3})
    with pytest.raises(ValidationError):
        Training.model_validate({"max_steps": 3}, by_alias=True, by_name=False)


@pytest.mark.parametrize(
    "text, want", [("1e-4", "0.0001"), ("16", "16"), ("0.05", "0.05"), ("2E+3", "2000"), ("0", "0")]
)
def test_decimal_strings_are_exact(text: str, want: str) -> None:
    assert parse_decimal(text) == Decimal(want)


def test_annotations_are_limited_as_the_api_server_limits_them() -> None:
    fits = {"a": "x" * (MAX_ANNOTATION_BYTES - 1)}
    assert ObjectMeta(name="a", annotations=fits).annotations == fits
    assert "262145 bytes in all" in errors_of(ObjectMeta, {"name": "a", "annotations": {"ab": fits["a"]}})[0][1]


def test_objects_from_a_cluster_are_read_with_their_status() -> None:
    job = AdapterJob.model_validate(
        {
            "apiVersion": "multigraft.dev/v1alpha1",
            "kind": "AdapterJob",
            "metadata": {
                "name": "a",
                "uid": "u",
                "generation": 2,
                "resourceVersion": "7",
                "creationTimestamp": "2026-01-31T12:00:00Z",
                "managedFields": [{"manager": "kubectl"}],
            },
            "spec": {"poolRef": {"name": "p"}, "dataset": {"storageUri": "d"}, "training": {"maxSteps": 1}},
            "status": {
                "observedGeneration": 2,
                "phase": "Running",
                "fieldOfANewerOperator": 1,
                "metrics": [{"name": "loss", "value": "NaN"}],
            },
        }
    )
    assert job.key == "default/a"
    assert job.status is not None
    assert (job.status.phase, job.status.metrics[0].value) == ("Running", "NaN")


def test_defaults_are_written_whole_and_without_what_is_empty() -> None:
    assert write_default(PodTemplate()) is None
    assert write_default([]) is None
    assert write_default(Slots()) == {"max": 8, "maxRank": 64, "targetModules": ["all-linear"]}


def test_every_field_that_shapes_an_adapter_is_fixed() -> None:
    for model in (Lora, Training):
        assert {rule.field for rule in update_rules_of(model)} == {info.alias for info in model.model_fields.values()}


def test_pool_key() -> None:
    value = {
        "apiVersion": "multigraft.dev/v1alpha1",
        "kind": "BaseModelPool",
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"baseModel": {"storageUri": "b"}},
    }
    assert BaseModelPool.model_validate(value).key == "n/p"
