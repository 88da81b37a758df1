"""Which jobs fit which pools, and what is said when one does not."""

from __future__ import annotations

from typing import Any

import pytest

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.admission import Refusal, check_job_against_pool, select_pools
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.reasons import Reason


def make_pool(
    name: str = "p",
    namespace: str = "a",
    *,
    labels: dict[str, str] | None = None,
    slots: dict[str, Any] | None = None,
    capacity: int | str = 4096,
) -> BaseModelPool:
    return BaseModelPool.model_validate(
        {
            "apiVersion": "multigraft.dev/v1alpha1",
            "kind": "BaseModelPool",
            "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
            "spec": {
                "baseModel": {"storageUri": "b"},
                "slots": slots or {},
                "batching": {"maxTokensPerMicrobatch": capacity},
            },
        }
    )


def make_job(
    pool: dict[str, Any] | None = None, *, namespace: str = "a", lora: dict[str, Any] | None = None, **training: Any
) -> AdapterJob:
    return AdapterJob.model_validate(
        {
            "apiVersion": "multigraft.dev/v1alpha1",
            "kind": "AdapterJob",
            "metadata": {"name": "j", "namespace": namespace},
            "spec": {
                **(pool or {"poolRef": {"name": "p"}}),
                "dataset": {"storageUri": "d"},
                "lora": lora or {},
                "training": {"maxSteps": 1, **training},
            },
        }
    )


def test_a_job_that_fits() -> None:
    assert check_job_against_pool(make_job(lora={"r": 64}, maxSeqLength=4096), make_pool()) == []


def test_G11_sequence_over_the_capacity() -> None:
    assert check_job_against_pool(make_job(maxSeqLength=512), make_pool(capacity=128)) == [
        Refusal(
            Reason.SEQUENCE_EXCEEDS_CAPACITY,
            "spec.training.maxSeqLength",
            "512 tokens do not fit batching.maxTokensPerMicrobatch 128 of pool a/p",
        )
    ]


@pytest.mark.parametrize(
    "length, capacity, fits", [(100, 128, True), (100, 112, True), (100, 111, False), (100, 100, False)]
)
def test_G11_padding_to_tiles_counts(length: int, capacity: int, fits: bool) -> None:
    got = check_job_against_pool(make_job(maxSeqLength=length), make_pool(capacity=capacity), tile_tokens=16)
    assert (not got) == fits
    if got:
        assert "100 tokens (112 in whole tiles of 16) do not fit" in got[0].message


@pytest.mark.parametrize(
    "length, measured, fits",
    [
        pytest.param(1_048_576, None, True, id="not known yet: the trainer will tell"),
        pytest.param(512, 512, True, id="as long as the capacity"),
        pytest.param(513, 512, False, id="a token longer"),
    ],
)
def test_G11_an_auto_capacity_counts_once_it_is_measured(length: int, measured: int | None, fits: bool) -> None:
    got = check_job_against_pool(make_job(maxSeqLength=length), make_pool(capacity="Auto"), measured_capacity=measured)
    assert (not got) == fits
    if got:
        assert got[0].reason is Reason.SEQUENCE_EXCEEDS_CAPACITY
        assert got[0].message == "513 tokens do not fit batching.maxTokensPerMicrobatch Auto, here 512, of pool a/p"


def test_a_number_in_the_spec_is_not_overruled_by_a_measured_one() -> None:
    got = check_job_against_pool(make_job(maxSeqLength=512), make_pool(capacity=128), measured_capacity=4096)
    assert [refusal.reason for refusal in got] == [Reason.SEQUENCE_EXCEEDS_CAPACITY]


def test_rank_over_the_pool() -> None:
    assert check_job_against_pool(make_job(lora={"r": 65}), make_pool()) == [
        Refusal(Reason.RANK_EXCEEDS_POOL, "spec.lora.r", "65 is over slots.maxRank 64 of pool a/p")
    ]


def test_every_reason_is_given() -> None:
    job = make_job(lora={"r": 65}, maxSeqLength=8192)
    pool = make_pool(slots={"targetModules": ["q_proj"]})
    assert [refusal.reason for refusal in check_job_against_pool(job, pool)] == [
        Reason.RANK_EXCEEDS_POOL,
        Reason.SEQUENCE_EXCEEDS_CAPACITY,
        Reason.TARGET_MODULES_NOT_ALLOWED,
    ]


@pytest.mark.parametrize(
    "wanted, allowed, foreign",
    [
        (["q_proj"], ["all-linear"], None),
        (["all-linear"], ["all-linear"], None),
        (["v_proj"], ["q_proj", "v_proj"], None),
        (["v_proj", "o_proj", "k_proj"], ["q_proj", "v_proj"], "o_proj, k_proj"),
        (["all-linear"], ["q_proj"], "all-linear"),
    ],
)
def test_target_modules_of_the_pool(wanted: list[str], allowed: list[str], foreign: str | None) -> None:
    got = check_job_against_pool(make_job(lora={"targetModules": wanted}), make_pool(slots={"targetModules": allowed}))
    want = [] if foreign is None else [f"{foreign} not among slots.targetModules {', '.join(allowed)} of pool a/p"]
    assert [refusal.message for refusal in got] == want


@pytest.mark.parametrize(
    "pool_field, pool, message",
    [
        ({"poolRef": {"name": "p"}}, make_pool("q"), "names pool a/p, not a/q"),
        ({"poolRef": {"name": "p"}}, make_pool("p", "b"), "names pool a/p, not b/p"),
        ({"poolSelector": {}}, make_pool("p", "b"), "takes pools of namespace a, not b/p"),
        ({"poolSelector": {"matchLabels": {"t": "x"}}}, make_pool(), "does not match the labels of pool a/p"),
    ],
)
def test_K07_another_pool_is_refused_alone(pool_field: dict[str, Any], pool: BaseModelPool, message: str) -> None:
    (got,) = check_job_against_pool(make_job(pool_field, lora={"r": 512}), pool)
    assert (got.reason, got.message) == (Reason.POOL_NOT_FOUND, message)


def test_pools_are_selected_in_the_namespace_of_the_job() -> None:
    gold, plain, other = (
        make_pool("gold", labels={"t": "x"}),
        make_pool("plain"),
        make_pool("other", "b", labels={"t": "x"}),
    )
    pools = [other, gold, plain]
    assert select_pools(make_job({"poolRef": {"name": "plain"}}), pools) == [plain]
    assert select_pools(make_job({"poolSelector": {"matchLabels": {"t": "x"}}}), pools) == [gold]
    assert select_pools(make_job({"poolSelector": {}}), pools) == [gold, plain]
