import json
import math

import pytest

from builders.run_result import make_job, make_result, make_step
from multigraft.planner.plan import GlobalBatch, Microbatch, Plan, PlanLimits, SampleRef, Segment
from multigraft_trainer.report.results import (
    HorizonResult,
    JobState,
    RunResult,
    SegmentShape,
    load_result,
    save_result,
)


def test_a_result_reads_back_as_it_was_written(tmp_path):
    want = make_result(make_job(), make_job("team-b/beta", state=JobState.FAILED, reason="NonFinite", rows=None))
    save_result(want, tmp_path / "result.json")
    assert load_result(tmp_path / "result.json") == want
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"], "no temporary file is left"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_J05_a_number_that_is_not_finite_is_null_and_never_zero_or_bare_nan(tmp_path, value):
    job = make_job(heldout_loss_after=value, history=(make_step(1, loss=value, grad_norm=value, skipped=True),))
    save_result(make_result(job), tmp_path / "result.json")
    text = (tmp_path / "result.json").read_text()
    data = json.loads(text, parse_constant=lambda name: pytest.fail(f"bare {name} in result.json"))
    assert data["jobs"][0]["heldoutLossAfter"] is None
    assert data["jobs"][0]["history"][0]["loss"] is None
    assert data["jobs"][0]["history"][0]["gradNorm"] is None
    assert load_result(tmp_path / "result.json").jobs[0].history[0].loss is None


def test_keys_are_camel_case_and_the_schema_has_a_version():
    data = make_result().to_json()
    assert data["schemaVersion"] == 1
    assert {"job", "state", "totalSteps", "heldoutLossBefore", "adapterPath"} <= set(data["jobs"][0])
    assert data["pool"]["tokensPerSecond"] == 120.0
    assert data["pool"]["fill"] == pytest.approx(0.8)
    assert data["jobs"][0]["rows"]["numDroppedByCode"] == {"EmptyMessages": 2}


def test_another_schema_version_is_refused_by_name():
    with pytest.raises(ValueError, match="schemaVersion: got 2, this version reads 1"):
        RunResult.from_json(make_result().to_json() | {"schemaVersion": 2})


def test_keys_of_a_newer_minor_version_are_left_out():
    data = make_result().to_json()
    data["jobs"][0]["comesLater"] = 1
    assert RunResult.from_json(data) == make_result()


def test_sums_without_any_microbatch_are_unknown_and_not_a_division_by_zero():
    pool = make_result(num_microbatches=0, train_seconds=0.0).pool
    assert pool.fill is None
    assert pool.tokens_per_second is None


def test_a_job_without_heldout_rows_has_no_change():
    assert make_job(heldout_loss_before=None).heldout_change is None
    assert make_job().heldout_change == pytest.approx(-0.745)


def test_failed_jobs_are_those_for_which_the_command_exits_non_zero():
    jobs = [make_job(f"default/{state.lower()}", state=state) for state in JobState]
    assert [job.job for job in make_result(*jobs).failed_jobs] == ["default/failed"]


def test_the_shape_of_a_plan_is_kept_without_sample_ids():
    batch = GlobalBatch(0, (SampleRef(0, 30), SampleRef(1, 20)))
    plan = Plan(PlanLimits(64), (Microbatch((Segment("default/alpha", 0, batch.samples),)), Microbatch(())))
    got = HorizonResult.from_plan(plan)
    assert got.microbatches == ((SegmentShape("default/alpha", 0, 50),), ())
    assert (got.token_capacity, got.plan_hash) == (64, plan.hash)
