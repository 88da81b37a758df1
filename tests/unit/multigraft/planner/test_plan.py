from __future__ import annotations

import json

import pytest

from builders.planning import make_plan
from multigraft.planner.plan import Microbatch, Outcome, Plan, PlanLimits

PLAN = make_plan(PlanLimits(10, 2, 3, 2), "a0:0/3,1/2 b4:7/1", "", "a1:2/3", "")


def test_padding_counts_whole_tiles_of_each_segment() -> None:
    assert PLAN.microbatches[0].num_tokens == 6
    assert PLAN.microbatches[0].padded_tokens(2) == 8
    assert PLAN.microbatches[0].padded_tokens(128) == 256
    assert Microbatch(()).padded_tokens(2) == 0


def test_fill_leaves_no_ops_out() -> None:
    assert (PLAN.num_microbatches, PLAN.num_no_ops) == (2, 2)
    assert PLAN.fill == pytest.approx(9 / 20)
    assert make_plan(PlanLimits(10), "").fill == 0.0


def test_gap_is_above_the_bound() -> None:
    assert Plan(PLAN.limits, PLAN.microbatches, lower_bound=1).gap == 1.0
    assert PLAN.gap == 0.0


def test_a_plan_reads_back_from_text() -> None:
    plan = Plan(PLAN.limits, PLAN.microbatches, Outcome.OPTIMAL, 2, solver_seconds=1.5, packer="rounds")
    got = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert got == plan
    assert (got.solver_seconds, got.packer) == (1.5, "rounds")


def test_the_hash_covers_what_runs_and_not_how_it_was_found() -> None:
    assert Plan(PLAN.limits, PLAN.microbatches, Outcome.FEASIBLE, 2, solver_seconds=9.0).hash == PLAN.hash
    assert Plan(PlanLimits(10, 2, 3, 1), PLAN.microbatches).hash != PLAN.hash
    assert Plan(PLAN.limits, PLAN.microbatches[:1]).hash != PLAN.hash


def test_a_changed_file_is_refused() -> None:
    data = PLAN.to_json()
    data["microbatches"][0][0]["samples"][0][1] = 4
    with pytest.raises(ValueError, match="plan hash: file says"):
        Plan.from_json(data)
    with pytest.raises(ValueError, match="plan format: got 99, this version reads 1"):
        Plan.from_json({**PLAN.to_json(), "format": 99})
