from __future__ import annotations

from typing import Any

import pytest

from multigraft.api.adapter_job import AdapterJob
from multigraft_trainer.checkpoints.training_spec import build_training_spec, describe_difference, hash_spec


def build(spec: dict[str, Any] | None = None, *, base_model: str = "base", fingerprint: str = "data") -> dict[str, Any]:
    manifest = {
        "apiVersion": "multigraft.dev/v1alpha1",
        "kind": "AdapterJob",
        "metadata": {"name": "a"},
        "spec": {
            "poolRef": {"name": "pool"},
            "dataset": {"storageUri": "data.jsonl"},
            "lora": {},
            "training": {"maxSteps": 5},
        },
    }
    for section, values in (spec or {}).items():
        target: Any = manifest["spec"]
        target[section] = {**target[section], **values} if isinstance(target.get(section), dict) else values
    job = AdapterJob.model_validate(manifest)
    return build_training_spec(job, base_model=base_model, dataset_fingerprint=fingerprint)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"priority": 5}, id="priority"),
        pytest.param({"suspend": True}, id="suspend"),
        pytest.param({"backoffLimit": 9}, id="retries"),
        pytest.param({"output": {"storageUri": "elsewhere"}}, id="output folder"),
        pytest.param({"training": {"maxSteps": 5, "maxNonfiniteSteps": 50}}, id="patience with bad steps"),
        pytest.param({"training": {"maxSteps": 5, "learningRate": "0.0002"}}, id="another spelling of a number"),
        pytest.param({"lora": {"loraAlpha": "16.0"}}, id="another spelling of alpha"),
        pytest.param({"lora": {"r": 8}}, id="a default written out"),
        pytest.param({"dataset": {"storageUri": "moved.jsonl"}}, id="the same data in another place"),
    ],
)
def test_what_does_not_change_the_weights_is_left_out(change: dict[str, Any]) -> None:
    assert hash_spec(build(change)) == hash_spec(build())


@pytest.mark.parametrize(
    "change, want",
    [
        ({"training": {"maxSteps": 6}}, "training.maxSteps: 5 there, 6 now"),
        ({"training": {"maxSteps": 5, "learningRate": "1e-3"}}, "training.learningRate: '0.0002' there, '0.001' now"),
        ({"training": {"maxSteps": 5, "seed": 1}}, "training.seed: 42 there, 1 now"),
        ({"lora": {"r": 4}}, "lora.r: 8 there, 4 now"),
        ({"lora": {"useRslora": True}}, "lora.useRslora: False there, True now"),
        (
            {"lora": {"targetModules": ["q_proj"]}},
            "lora.targetModules: ['all-linear'] there, ['q_proj'] now",
        ),
        ({"resumeFrom": {"storageUri": "start"}}, "resumeFrom.storageUri: 'absent' there, 'start' now"),
    ],
)
def test_what_changes_the_weights_is_named_with_both_values(change: dict[str, Any], want: str) -> None:
    got = describe_difference(build(), build(change))

    assert want in got
    assert hash_spec(build(change)) != hash_spec(build())


def test_base_and_data_are_part_of_it() -> None:
    got = describe_difference(build(), build(base_model="other", fingerprint="new"))

    assert got == "baseModel: 'base' there, 'other' now; dataset.fingerprint: 'data' there, 'new' now"


def test_the_order_of_targets_does_not_matter() -> None:
    first, second = (
        build({"lora": {"targetModules": names}}) for names in (["q_proj", "v_proj"], ["v_proj", "q_proj"])
    )

    assert first == second


def test_equal_specs_do_not_differ() -> None:
    assert describe_difference(build(), build()) == ""
