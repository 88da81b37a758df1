from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.planning import make_work
from multigraft.planner.plan import GlobalBatch, JobWork, PlanLimits, SampleRef
from multigraft.planner.work_check import check_work

CASES = Path(__file__).parents[3] / "cases"


@pytest.mark.parametrize(
    "work, limits, words",
    [
        ([make_work("a", [1])], PlanLimits(0), "token_capacity: got 0"),
        ([make_work("a", [1])], PlanLimits(10, 0), "tile_tokens: got 0"),
        ([make_work("a", [1])], PlanLimits(10, 1, 0), "num_stages: got 0"),
        ([make_work("a", [1])], PlanLimits(10, 1, 1, 0), "num_replicas: got 0"),
        ([make_work("a", [1])], PlanLimits(10, 16), r"token_capacity: got 10, allowed 16"),
        ([make_work("a", [1]), make_work("a", [1])], PlanLimits(10), "job a: listed twice"),
        ([make_work("a", [1], [])], PlanLimits(10), "job a: step 1 has no samples"),
        ([make_work("a", [0])], PlanLimits(10), "job a: draw 0 has 0 tokens"),
        ([make_work("a", [20], [11])], PlanLimits(10), "draw 0 of step 0 has 20 tokens, a microbatch takes 10"),
        ([make_work("a", [9])], PlanLimits(10, 4), r"9 tokens \(12 in whole tiles of 4\), a microbatch takes 10"),
        (
            [JobWork("a", (GlobalBatch(3, (SampleRef(0, 1),)), GlobalBatch(5, (SampleRef(1, 1),))))],
            PlanLimits(10),
            "global batch 1 has step 5, allowed 4",
        ),
        (
            [JobWork("a", (GlobalBatch(3, (SampleRef(0, 1),)), GlobalBatch(4, (SampleRef(0, 1),))))],
            PlanLimits(10),
            "a draw occurs twice",
        ),
    ],
)
def test_work_that_no_plan_can_serve_is_refused_by_name(work: list[JobWork], limits: PlanLimits, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_work(work, limits)


@pytest.mark.parametrize("case, want", [("G01", "has 300 tokens, a microbatch takes 256"), ("G02", "has 61 tokens")])
def test_G01_G02_a_sample_longer_than_a_microbatch_is_named_before_any_packing(case: str, want: str) -> None:
    data = json.loads((CASES / case / "lengths.json").read_text())
    work = [make_work(name, lengths) for name, lengths in data["adapters"].items()]
    with pytest.raises(ValueError, match=want):
        check_work(work, PlanLimits(data["capacity"]))


def test_G02_a_sample_as_long_as_a_microbatch_is_allowed() -> None:
    check_work([make_work("a", [60, 1]), make_work("b", [60])], PlanLimits(60))


def test_G13_the_message_stays_short_for_the_longest_name_and_many_long_samples() -> None:
    job = "n" * 253 + "/" + "m" * 253
    with pytest.raises(ValueError, match=r"99999 more of this step are too long") as caught:
        check_work([make_work(job, [10**9] * 100_000)], PlanLimits(4096, 128))
    assert len(str(caught.value)) < 500
