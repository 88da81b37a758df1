from __future__ import annotations

import pytest

from builders.planning import make_plan, make_random_work, make_work
from multigraft.planner.cost import CostModel
from multigraft.planner.horizon import plan_horizon
from multigraft.planner.plan import GlobalBatch, JobWork, Plan, PlanLimits
from multigraft.planner.rolling import extend_plan, find_earliest_slots, subtract_committed
from multigraft.planner.simulate import simulate
from multigraft.planner.verify import verify_plan


@pytest.mark.parametrize(
    "limits, committed, want",
    [
        (PlanLimits(9, 1, 4), ["a0:0/1"], {"a": 3}),
        (PlanLimits(9, 1, 4), ["a0:0/1", "", ""], {"a": 1}),
        (PlanLimits(9, 1, 4), ["a0:0/1", "", "", ""], {}),
        (PlanLimits(9, 1, 1), ["a0:0/1"], {}),
        (PlanLimits(9, 1, 4), ["a1:1/1"], {}),
        (PlanLimits(9, 1, 4), ["a0:0/1", "a1:1/1"], {"a": 2}),
        (PlanLimits(9, 1, 2, 2), ["a0:0/1", ""], {"a": 1}),
        (PlanLimits(9, 1, 4), ["z0:0/1"], {}),
    ],
    ids=[
        "right after its step",
        "part of the distance has passed",
        "all of it has passed",
        "one stage owes nothing",
        "a step that is partly committed goes on at once",
        "only steps before the next one count",
        "slots of two replicas",
        "a job that has left",
    ],
)
def test_distance_owed_over_the_seam(limits: PlanLimits, committed: list[str], want: dict[str, int]) -> None:
    work = [make_work("a", [1], first_step=1), make_work("b", [1])]
    assert find_earliest_slots(make_plan(limits, *committed).microbatches, work, limits) == want


def test_committed_microbatches_must_be_whole_slots() -> None:
    limits = PlanLimits(9, 1, 1, 2)
    with pytest.raises(ValueError, match="got 1 microbatches, allowed whole slots of 2"):
        find_earliest_slots(make_plan(limits, "a0:0/1").microbatches, [], limits)


@pytest.mark.parametrize("num_stages, num_replicas", [(1, 1), (4, 1), (3, 2)])
@pytest.mark.parametrize("cut", [0, 1, 5, 9])
def test_a_plan_cut_anywhere_and_replanned_is_one_valid_plan(num_stages: int, num_replicas: int, cut: int) -> None:
    limits = PlanLimits(4096, 64, num_stages, num_replicas)
    work = make_random_work(cut, num_jobs=4, num_steps=3)
    plan = plan_horizon(work, limits, solver_timeout_seconds=0)
    committed = plan.microbatches[: cut * num_replicas]
    rest = extend_plan(committed, subtract_committed(work, committed), limits)
    whole = Plan(limits, committed + rest.microbatches)
    assert verify_plan(whole, work) == []
    assert simulate(whole, CostModel()).stale == ()


def test_a_job_joins_and_another_leaves_in_the_middle() -> None:
    limits = PlanLimits(4096, 64, 4)
    work = make_random_work(1, num_jobs=4, num_steps=3)
    committed = plan_horizon(work, limits, solver_timeout_seconds=0).microbatches[:8]
    joined = make_work("team/new", [500, 600], [700])
    going_on = subtract_committed(work[1:], committed)
    rest = extend_plan(committed, [*going_on, joined], limits)
    whole = Plan(limits, committed + rest.microbatches)
    left_with = {(s.step, r) for m in committed for s in m.segments if s.job == work[0].job for r in s.samples}
    ended = JobWork(
        work[0].job,
        tuple(
            GlobalBatch(batch.step, tuple(r for r in batch.samples if (batch.step, r) in left_with))
            for batch in work[0].global_batches
            if any((batch.step, r) in left_with for r in batch.samples)
        ),
    )
    assert verify_plan(whole, [ended, *work[1:], joined]) == []


def test_what_is_committed_is_taken_off() -> None:
    work = [make_work("a", [1, 2], [3]), make_work("b", [4])]
    committed = make_plan(PlanLimits(9), "a0:0/1 b0:0/4").microbatches
    left = subtract_committed(work, committed)
    assert [[(b.step, [s.draw for s in b.samples]) for b in job.global_batches] for job in left] == [
        [(0, [1]), (1, [2])],
        [],
    ]


@pytest.mark.parametrize(
    "committed, words",
    [(["a0:0/1", "a0:0/1"], "draw 0 of step 0 is committed twice"), (["a1:2/3"], "step 1 is committed before step 0")],
)
def test_committed_work_that_cannot_be_is_refused(committed: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        subtract_committed([make_work("a", [1, 2], [3])], make_plan(PlanLimits(9), *committed).microbatches)
