"""The control protocol's models: strict in what is asked, finite in what is answered."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from pydantic import ValidationError

from multigraft.api.control import (
    MAX_INLINE_BYTES,
    Assignments,
    BasePhase,
    BaseState,
    Capacity,
    JobReport,
    TrainerJobPhase,
    TrainerState,
)


def make_set(**changes: Any) -> dict[str, Any]:
    job = {
        "id": {"namespace": "team-a", "name": "support", "uid": "9d1e"},
        "generation": 1,
        "spec": {"poolRef": {"name": "p"}, "dataset": {"storageUri": "a.jsonl"}, "training": {"maxSteps": 3}},
    }
    pool = {"namespace": "team-a", "name": "p", "uid": "2f0c"}
    return {"epoch": 3, "pool": pool, "jobs": [job], **changes}


def with_job(**changes: Any) -> dict[str, Any]:
    body = make_set()
    body["jobs"][0] |= changes
    return body


BAD_SETS = {
    "an unknown field": (make_set(job=[]), "job"),
    "a negative epoch": (make_set(epoch=-1), "epoch"),
    "an epoch beyond 64 bits": (make_set(epoch=2**63), "epoch"),
    "an epoch as text": (make_set(epoch="3"), "epoch"),
    "one name twice": (make_set(jobs=make_set()["jobs"] * 2), "team-a/support more than once"),
    "a uid that leads out of a folder": (with_job(id={"namespace": "a", "name": "b", "uid": "../x"}), "uid"),
    "a namespace that leads out of a folder": (with_job(id={"namespace": "..", "name": "b", "uid": "x"}), "namespace"),
    "rows that are no base64": (with_job(rows={"key": "a.jsonl", "content": "%%"}), "content"),
    "rows beyond a ConfigMap": (
        with_job(rows={"key": "a.jsonl", "content": base64.b64encode(b"x" * (MAX_INLINE_BYTES + 3)).decode()}),
        "content",
    ),
    "a spec without steps": (
        with_job(spec={"poolRef": {"name": "p"}, "dataset": {"storageUri": "a"}, "training": {}}),
        "maxSteps",
    ),
}


@pytest.mark.parametrize("body, want", BAD_SETS.values(), ids=BAD_SETS.keys())
def test_a_bad_set_is_refused_and_says_where(body: dict[str, Any], want: str) -> None:
    with pytest.raises(ValidationError, match=want):
        Assignments.model_validate_json(json.dumps(body))


def test_a_set_survives_the_wire() -> None:
    rows = {"key": "a.jsonl", "content": base64.b64encode(b'{"text": "\xc3\xa9"}\n').decode()}
    sent = Assignments.model_validate_json(json.dumps(with_job(rows=rows, attempt=2)))
    got = Assignments.model_validate_json(sent.model_dump_json(by_alias=True, exclude_none=True))
    assert got == sent
    assert got.jobs[0].build_job().key == "team-a/support"


def make_report(**changes: Any) -> JobReport:
    fields = {"namespace": "a", "name": "b", "uid": "u", "generation": 1, "phase": TrainerJobPhase.RUNNING, "rank": 4}
    return JobReport(**{**fields, **changes})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_not_finite_is_never_answered(value: float) -> None:
    with pytest.raises(ValidationError):
        make_report(loss=value)


def test_rows_of_the_largest_config_map_are_taken() -> None:
    content = b"x" * MAX_INLINE_BYTES
    rows = {"key": "a.jsonl", "content": base64.b64encode(content).decode()}
    got = Assignments.model_validate_json(json.dumps(with_job(rows=rows)))
    assert got.jobs[0].rows is not None
    assert got.jobs[0].rows.content == content


def test_an_operator_reads_the_state_of_a_newer_trainer() -> None:
    state = TrainerState(
        pod="p-0",
        pool="a/p",
        start_id="1",
        version="1",
        epoch=1,
        base=BaseState(phase=BasePhase.READY),
        capacity=Capacity(slots=1, slots_in_use=0, max_rank=4, token_capacity=16),
        jobs=[make_report(loss=0.5)],
    )
    body = json.loads(state.model_dump_json(by_alias=True)) | {"fromTheFuture": 1}
    assert TrainerState.model_validate_json(json.dumps(body)) == state


def test_every_field_of_the_protocol_is_described() -> None:
    undescribed = [
        f"{model.__name__}.{name}"
        for model in (Assignments, TrainerState, JobReport, BaseState, Capacity)
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert undescribed == []
