from __future__ import annotations

import pytest

from builders.planning import make_plan, make_work
from multigraft.planner.plan import PlanLimits
from multigraft.planner.verify import PlanRefusedError, ViolationKind, require_valid, verify_plan

WORK = [make_work("a", [10, 20], [30]), make_work("b", [5])]


@pytest.mark.parametrize(
    "limits, microbatches",
    [
        (PlanLimits(60), ["a0:0/10,1/20 b0:0/5", "a1:2/30"]),
        (PlanLimits(60), ["a0:0/10", "a0:1/20", "b0:0/5 a1:2/30"]),
        (PlanLimits(40, 10), ["a0:0/10,1/20 b0:0/5", "a1:2/30"]),
        (PlanLimits(60, 1, 3), ["a0:0/10,1/20", "b0:0/5", "", "a1:2/30"]),
        (PlanLimits(60, 1, 1, 2), ["a0:0/10", "a0:1/20 b0:0/5", "a1:2/30", ""]),
    ],
    ids=[
        "one step after the other",
        "a step over two microbatches",
        "tiles fill the capacity exactly",
        "three stages with one no-op",
        "two replicas share a step",
    ],
)
def test_a_good_plan_has_no_violation(limits: PlanLimits, microbatches: list[str]) -> None:
    plan = make_plan(limits, *microbatches)
    assert verify_plan(plan, WORK) == []
    assert require_valid(plan, WORK) is plan


@pytest.mark.parametrize(
    "limits, microbatches, want",
    [
        (PlanLimits(60), ["a0:0/10 b0:0/5", "a1:2/30"], {ViolationKind.COVERAGE}),
        (PlanLimits(60), ["a0:0/10,1/20,1/20 b0:0/5", "a1:2/30"], {ViolationKind.COVERAGE}),
        (PlanLimits(60), ["a0:0/10,1/20 b0:0/5", "a1:2/31"], {ViolationKind.COVERAGE}),
        (PlanLimits(60), ["a0:0/10,1/20 b0:0/5", "a1:2/30", "c0:0/1"], {ViolationKind.COVERAGE}),
        (PlanLimits(60), ["a0:0/10,1/20,2/30 b0:0/5"], {ViolationKind.COVERAGE}),
        (PlanLimits(34), ["a0:0/10,1/20 b0:0/5", "a1:2/30"], {ViolationKind.CAPACITY}),
        (PlanLimits(39, 10), ["a0:0/10,1/20 b0:0/5", "a1:2/30"], {ViolationKind.CAPACITY}),
        (
            PlanLimits(60),
            ["a0:0/10,1/20 b0:0/5 a1:2/30"],
            {ViolationKind.CAPACITY, ViolationKind.SHAPE, ViolationKind.DISTANCE},
        ),
        (PlanLimits(60), ["a0:0/10 a0:1/20 b0:0/5", "a1:2/30"], {ViolationKind.SHAPE}),
        (PlanLimits(60), ["a0:0/10,1/20 b0:0/5", "a1:2/30 b0:"], {ViolationKind.SHAPE}),
        (PlanLimits(60), ["a1:2/30", "a0:0/10,1/20 b0:0/5"], {ViolationKind.ORDER}),
        (PlanLimits(60), ["a0:0/10", "a1:2/30", "a0:1/20 b0:0/5"], {ViolationKind.ORDER}),
        (PlanLimits(60, 1, 2), ["a0:0/10,1/20 b0:0/5", "a1:2/30"], {ViolationKind.DISTANCE}),
        (PlanLimits(60, 1, 4), ["a0:0/10,1/20 b0:0/5", "", "", "a1:2/30"], {ViolationKind.DISTANCE}),
        (PlanLimits(60, 1, 1, 2), ["a0:0/10,1/20 b0:0/5", "a1:2/30"], {ViolationKind.DISTANCE}),
        (PlanLimits(60, 1, 2, 2), ["b0:0/5", "a0:0/10,1/20", "a1:2/30", ""], {ViolationKind.DISTANCE}),
        (PlanLimits(60, 1, 1, 2), ["a0:0/10,1/20 b0:0/5", "", "a1:2/30"], {ViolationKind.SHAPE}),
        (PlanLimits(60, 0), ["a0:0/10,1/20 b0:0/5", "a1:2/30"], {ViolationKind.SHAPE}),
    ],
    ids=[
        "a sample is missing",
        "a sample runs twice",
        "a length is wrong",
        "an unknown job",
        "a sample moved to another step",
        "one token over capacity",
        "whole tiles over capacity",
        "two steps of a job in one microbatch",
        "two segments of a job in one microbatch",
        "a segment without samples",
        "steps in the wrong order",
        "steps interleave backwards",
        "distance 1 on two stages",
        "distance 3 on four stages: the paper's k+S-1",
        "two steps of a job in one slot of two replicas",
        "distance counts slots, not microbatches",
        "the last slot is not whole",
        "tiles of no tokens",
    ],
)
def test_a_bad_plan_is_refused(limits: PlanLimits, microbatches: list[str], want: set[ViolationKind]) -> None:
    plan = make_plan(limits, *microbatches)
    got = verify_plan(plan, WORK)
    assert {violation.kind for violation in got} >= want
    with pytest.raises(PlanRefusedError, match="plan refused") as caught:
        require_valid(plan, WORK)
    assert caught.value.violations == tuple(got)


def test_distance_owed_to_an_earlier_plan_is_kept() -> None:
    plan = make_plan(PlanLimits(60, 1, 2), "b0:0/5", "", "a0:0/10,1/20", "", "a1:2/30")
    assert verify_plan(plan, WORK, earliest_slots={"a": 2}) == []
    got = verify_plan(plan, WORK, earliest_slots={"a": 3})
    assert [(v.kind, v.position) for v in got] == [(ViolationKind.DISTANCE, 2)]


def test_samples_of_no_tokens_are_refused() -> None:
    plan = make_plan(PlanLimits(60), "a0:0/0")
    assert {v.kind for v in verify_plan(plan, [make_work("a", [0])])} == {ViolationKind.SHAPE}


def test_a_refusal_names_a_few_violations_and_counts_the_rest() -> None:
    work = [make_work("a", [1] * 50)]
    with pytest.raises(PlanRefusedError, match="45 more") as caught:
        require_valid(make_plan(PlanLimits(60)), work)
    assert len(str(caught.value)) < 1000
