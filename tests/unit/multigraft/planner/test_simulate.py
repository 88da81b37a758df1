from __future__ import annotations

import numpy as np
import pytest

from builders.planning import make_plan, make_random_work
from multigraft.planner.best_fill import FillPolicy, fill_best
from multigraft.planner.cost import CostModel
from multigraft.planner.plan import Plan, PlanLimits
from multigraft.planner.simulate import build_1f1b_order, build_gpipe_order, simulate
from multigraft.planner.verify import ViolationKind, verify_plan

UNIT = CostModel(1.0, 0.0, 0.0, 1.0, 0.0, 0.0, no_op_ms=0.0)  # 1 ms for either pass of the whole model
ORDERING = {ViolationKind.DISTANCE, ViolationKind.ORDER}


def spaced(num_microbatches: int, num_stages: int) -> Plan:
    texts = [f"{chr(65 + i % 26)}{i // 26}:{i}/1" for i in range(num_microbatches)]
    return make_plan(PlanLimits(10, 1, num_stages), *texts)


@pytest.mark.parametrize("num_stages", [1, 2, 4, 8])
@pytest.mark.parametrize("num_microbatches", [1, 3, 8, 20])
def test_1f1b_of_equal_microbatches_takes_what_the_textbook_says(num_stages: int, num_microbatches: int) -> None:
    timeline = simulate(spaced(num_microbatches, num_stages), UNIT)
    assert timeline.makespan_ms == pytest.approx((num_microbatches + num_stages - 1) * 2 / num_stages)
    assert timeline.bubble_ratio == pytest.approx((num_stages - 1) / (num_microbatches + num_stages - 1))
    assert timeline.stale == ()


def test_gpipe_flushes_cost_a_bubble_each() -> None:
    plan = spaced(8, 4)
    timeline = simulate(plan, UNIT, build_gpipe_order(4, [4, 4]))
    assert timeline.makespan_ms == pytest.approx(2 * (4 + 3) * 2 / 4)
    assert timeline.bubble_ratio == pytest.approx(3 / 7)


def test_1f1b_order_of_the_first_and_the_last_stage() -> None:
    first, last = build_1f1b_order(3, 4)[0], build_1f1b_order(3, 4)[2]
    assert "".join(f"{op.kind}{op.slot}" for op in first) == "F0F1F2B0F3B1B2B3"
    assert "".join(f"{op.kind}{op.slot}" for op in last) == "F0B0F1B1F2B2F3B3"


@pytest.mark.parametrize("num_stages", range(1, 9))
def test_a_step_num_stages_slots_later_sees_its_weights_and_one_slot_earlier_it_does_not(num_stages: int) -> None:
    gap = num_stages - 1
    fillers = [f"{chr(66 + i)}0:0/1" for i in range(gap)]
    good = make_plan(PlanLimits(10, 1, num_stages), "A0:0/1", *fillers, "A1:1/1")
    assert simulate(good, UNIT).stale == ()
    if gap:
        bad = make_plan(PlanLimits(10, 1, num_stages), "A0:0/1", *fillers[:-1], "A1:1/1")
        assert {(use.stage, use.job, use.step) for use in simulate(bad, UNIT).stale} == {(0, "A", 1)}


def test_the_step_waits_for_the_last_backward_of_its_global_batch() -> None:
    plan = make_plan(PlanLimits(10, 1, 2), "A0:0/1", "B0:0/1", "A0:1/1", "A1:2/1")
    assert {use.position for use in simulate(plan, UNIT).stale} == {3}


def test_the_step_waits_for_all_replicas() -> None:
    cost = CostModel(0.0, 1.0, 0.0, 0.0, 1.0, 0.0, no_op_ms=0.0)
    plan = make_plan(PlanLimits(100, 1, 1, 2), "A0:0/1", "A0:1/50", "A1:2/1", "")
    timeline = simulate(plan, cost)
    assert timeline.start_ms[0, 0, 2] == pytest.approx(100)
    assert timeline.stale == ()
    close = make_plan(PlanLimits(100, 1, 2, 2), "A0:0/1", "A0:1/50", "A1:2/1", "")
    assert simulate(close, cost).stale


@pytest.mark.parametrize("seed", range(40))
def test_the_verifier_refuses_an_order_exactly_when_the_simulator_finds_stale_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_stages, num_replicas = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    limits = PlanLimits(4096, 64, num_stages, num_replicas)
    work = make_random_work(seed, num_jobs=int(rng.integers(1, 5)), num_steps=3, batch_size=4)
    microbatches = fill_best(work, limits, FillPolicy(4096))
    for _ in range(int(rng.integers(0, 3))):
        a, b = rng.integers(0, len(microbatches), 2)
        microbatches[a], microbatches[b] = microbatches[b], microbatches[a]
    plan = Plan(limits, tuple(microbatches))
    refused = any(violation.kind in ORDERING for violation in verify_plan(plan, work))
    assert bool(simulate(plan, CostModel()).stale) == refused


def test_stage_shares_move_time_between_stages() -> None:
    cost = CostModel(1.0, 0.0, 0.0, 1.0, 0.0, 0.0, no_op_ms=0.0, stage_shares=(0.25, 0.75))
    timeline = simulate(spaced(50, 2), cost)
    assert timeline.bubble_ratios[0] > 0.6
    assert timeline.bubble_ratios[1] < 0.02
    with pytest.raises(ValueError, match=r"stage_shares: got 2 shares, allowed 4"):
        simulate(spaced(5, 4), cost)


def test_no_ops_take_their_own_time_and_do_not_count_as_work() -> None:
    cost = CostModel(1.0, 0.0, 0.0, 1.0, 0.0, 0.0, no_op_ms=0.5)
    timeline = simulate(make_plan(PlanLimits(10), "A0:0/1", "", "B0:0/1"), cost)
    assert timeline.makespan_ms == pytest.approx(5)
    assert timeline.bubble_ratio == pytest.approx(1 / 5)


def test_an_empty_plan_takes_no_time() -> None:
    timeline = simulate(make_plan(PlanLimits(10, 1, 4)), UNIT)
    assert timeline.makespan_ms == 0
    assert timeline.bubble_ratio == 0


def test_orders_that_cannot_run_are_refused() -> None:
    with pytest.raises(ValueError, match="wait for each other"):
        simulate(spaced(2, 2), UNIT, [build_1f1b_order(2, 2)[0], list(reversed(build_1f1b_order(2, 2)[1]))])


def test_times_follow_tokens_padding_and_squares() -> None:
    cost = CostModel(1.0, 0.1, 0.01, 2.0, 0.2, 0.02, no_op_ms=0.3)
    plan = make_plan(PlanLimits(64, 16), "A0:0/10,1/7 B0:0/3", "")
    got = cost.estimate_ms(plan.microbatches, 16)
    assert got[:, 0] == pytest.approx([1 + 4.8 + 1.58, 2 + 9.6 + 3.16])
    assert got[:, 1] == pytest.approx([0.3, 0.3])
