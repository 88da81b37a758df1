from __future__ import annotations

import pytest

from builders.planning import make_plan
from multigraft.planner.order import order_microbatches
from multigraft.planner.plan import Microbatch, PlanLimits


def ordered(limits: PlanLimits, *texts: str, earliest: dict[str, int] | None = None) -> list[str]:
    microbatches = make_plan(limits, *texts).microbatches
    return [name(m) for m in order_microbatches(microbatches, limits, earliest)]


def name(microbatch: Microbatch) -> str:
    return "+".join(f"{s.job}{s.step}" for s in microbatch.segments)


@pytest.mark.parametrize(
    "limits, given, want",
    [
        (PlanLimits(9), ["a0:0/1", "b0:0/1", "a1:1/1"], ["a0", "b0", "a1"]),
        (PlanLimits(9, 1, 2), ["a0:0/1", "a1:1/1", "b0:0/1"], ["a0", "b0", "a1"]),
        (PlanLimits(9, 1, 4), ["a0:0/1", "a1:1/1", "b0:0/1"], ["a0", "b0", "", "", "a1"]),
        (PlanLimits(9, 1, 1, 2), ["a0:0/1", "a1:1/1", "b0:0/1"], ["a0", "b0", "a1", ""]),
        (PlanLimits(9, 1, 2, 2), ["a0:0/1", "a0:1/1", "a1:2/1"], ["a0", "a0", "", "", "a1", ""]),
        (PlanLimits(9, 1, 1), ["a1:1/1 b0:0/1", "a0:0/1"], ["a0", "a1+b0"]),
    ],
    ids=[
        "the given order is kept where it runs",
        "another job fills the distance",
        "no-ops only where nothing fits",
        "replicas of one slot never hold two steps of a job",
        "distance counts slots",
        "a mixed microbatch waits for the step before",
    ],
)
def test_order(limits: PlanLimits, given: list[str], want: list[str]) -> None:
    assert ordered(limits, *given) == want


def test_C12_nine_samples_two_to_a_microbatch_on_two_ranks_end_with_one_no_op() -> None:
    given = [f"a0:{2 * i}/10,{2 * i + 1}/10" for i in range(4)] + ["a0:8/10"]
    got = ordered(PlanLimits(20, 1, 1, 2), *given)
    assert got == ["a0"] * 5 + [""]


def test_distance_owed_to_an_earlier_plan_delays_only_that_job() -> None:
    got = ordered(PlanLimits(9, 1, 3), "a5:0/1", "b0:0/1", earliest={"a": 2})
    assert got == ["b0", "", "a5"]


def test_steps_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="2 microbatches wait for each other"):
        ordered(PlanLimits(9), "a1:1/1 b0:0/1", "a0:0/1 b1:1/1")
