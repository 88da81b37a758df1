from __future__ import annotations

import pytest

from builders.planning import make_plan
from multigraft.planner.merge import merge_microbatches
from multigraft.planner.plan import Microbatch, PlanLimits


def merged(limits: PlanLimits, *texts: str, earliest: dict[str, int] | None = None) -> list[str]:
    return [show(m) for m in merge_microbatches(make_plan(limits, *texts).microbatches, limits, earliest)]


def show(microbatch: Microbatch) -> str:
    return " ".join(
        f"{s.job}{s.step}:{','.join(f'{r.draw}/{r.num_tokens}' for r in s.samples)}" for s in microbatch.segments
    )


@pytest.mark.parametrize(
    "limits, given, want",
    [
        (PlanLimits(10), ["a0:0/6", "b0:0/4"], ["a0:0/6 b0:0/4"]),
        (PlanLimits(10), ["a0:0/6", "b0:0/3,1/4"], ["a0:0/6 b0:1/4", "b0:0/3"]),
        (PlanLimits(10), ["a0:0/6", "a1:1/4"], ["a0:0/6", "a1:1/4"]),
        (PlanLimits(10, 1, 2), ["a0:0/9", "b0:0/2", "a1:1/9"], ["a0:0/9", "b0:0/2", "a1:1/9"]),
        (PlanLimits(10, 1, 2), ["a0:0/9", "b0:0/2", "c0:0/9", "a1:1/8"], ["a0:0/9", "b0:0/2", "c0:0/9", "a1:1/8"]),
        (PlanLimits(10, 1, 2), ["a0:0/9", "b0:0/9", "c0:0/2", "a1:1/8"], ["a0:0/9", "b0:0/9", "a1:1/8 c0:0/2"]),
        (PlanLimits(12, 4), ["a0:0/5", "b0:0/1,1/3"], ["a0:0/5 b0:0/1,1/3"]),
        (PlanLimits(12, 4), ["a0:0/5", "b0:0/1,1/4"], ["a0:0/5 b0:1/4", "b0:0/1"]),
        (PlanLimits(12, 4), ["a0:0/5", "a0:1/3"], ["a0:0/5,1/3"]),
        (PlanLimits(10), ["a0:0/6", "", "b0:0/4"], ["a0:0/6 b0:0/4", ""]),
    ],
    ids=[
        "a whole microbatch vanishes",
        "part of one moves",
        "two steps of a job never meet",
        "a step does not come nearer than the distance",
        "not even by one slot",
        "at the distance it moves",
        "tiles are counted per job",
        "tiles bound what moves",
        "a job fills its own started tile",
        "no-ops stay places",
    ],
)
def test_merge(limits: PlanLimits, given: list[str], want: list[str]) -> None:
    got = merged(limits, *given)
    assert sorted(map(sorted, (m.split() for m in got))) == sorted(map(sorted, (m.split() for m in want)))
    assert len(got) == len(want)


def test_distance_owed_to_an_earlier_plan_holds_samples_back() -> None:
    given = ["a0:0/6", "b0:0/4"]
    assert merged(PlanLimits(10, 1, 3), *given, earliest={"b": 1}) == given
    assert merged(PlanLimits(10, 1, 3), *given, earliest={"b": 0}) == ["a0:0/6 b0:0/4"]
