"""Random instances. `MULTIGRAFT_PROPERTY_EXAMPLES=5000 pytest ...` runs thousands; the default is quick and seeded."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multigraft.planner.best_fill import FillPolicy, fill_best
from multigraft.planner.bounds import bound_microbatches
from multigraft.planner.cost import CostModel
from multigraft.planner.horizon import plan_horizon
from multigraft.planner.merge import merge_microbatches
from multigraft.planner.order import order_microbatches
from multigraft.planner.plan import GlobalBatch, JobWork, Microbatch, Plan, PlanLimits, SampleRef
from multigraft.planner.rounds import build_rounds, build_units
from multigraft.planner.simulate import simulate
from multigraft.planner.verify import ViolationKind, verify_plan

NUM_EXAMPLES = int(os.environ.get("MULTIGRAFT_PROPERTY_EXAMPLES", "60"))
CHECKED = settings(
    max_examples=NUM_EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
ORDERING = {ViolationKind.DISTANCE, ViolationKind.ORDER}


@st.composite
def draw_limits(draw: st.DrawFn) -> PlanLimits:
    tile = draw(st.sampled_from([1, 7, 16]))
    capacity = draw(st.integers(tile, 200))
    return PlanLimits(capacity, tile, draw(st.integers(1, 6)), draw(st.integers(1, 3)))


@st.composite
def draw_instance(draw: st.DrawFn) -> tuple[list[JobWork], PlanLimits, dict[str, int]]:
    limits = draw(draw_limits())
    longest = limits.token_capacity // limits.tile_tokens * limits.tile_tokens
    lengths = st.lists(st.integers(1, longest), min_size=1, max_size=8)
    work = []
    for index in range(draw(st.integers(0, 6))):
        steps = draw(st.lists(lengths, max_size=4))
        work.append(build_job(f"j{index}", steps, draw(st.integers(0, 50)), draw(st.integers(-1, 1))))
    owed = {job.job: draw(st.integers(0, limits.num_stages)) for job in work if draw(st.booleans())}
    return work, limits, owed


def build_job(name: str, steps: Sequence[Sequence[int]], first_step: int, priority: int) -> JobWork:
    draw, batches = 0, []
    for index, lengths in enumerate(steps):
        samples = tuple(SampleRef(draw + i, length) for i, length in enumerate(lengths))
        batches.append(GlobalBatch(first_step + index, samples))
        draw += len(lengths)
    return JobWork(name, tuple(batches), priority)


Instance = tuple[list[JobWork], PlanLimits, dict[str, int]]


@CHECKED
@given(draw_instance())
def test_every_plan_verifies_is_above_the_bound_and_comes_again(instance: Instance) -> None:
    work, limits, owed = instance
    plan = plan_horizon(work, limits, solver_timeout_seconds=0, earliest_slots=owed)
    assert verify_plan(plan, work, earliest_slots=owed) == []
    assert plan.num_microbatches >= plan.lower_bound
    assert simulate(plan, CostModel()).stale == ()
    assert plan_horizon(work, limits, solver_timeout_seconds=0, earliest_slots=owed).hash == plan.hash
    assert Plan.from_json(plan.to_json()) == plan


@CHECKED
@given(draw_instance(), st.floats(0.1, 1.0), st.floats(0.1, 1.0))
def test_best_fill_verifies_under_any_policy(instance: Instance, target: float, enough: float) -> None:
    work, limits, owed = instance
    policy = FillPolicy(max(limits.tile_tokens, int(limits.token_capacity * target)), enough)
    plan = Plan(limits, tuple(fill_best(work, limits, policy, owed)))
    assert verify_plan(plan, work, earliest_slots=owed) == []


@CHECKED
@given(draw_instance())
def test_rounds_verify_with_and_without_merging_and_merging_never_adds_a_microbatch(instance: Instance) -> None:
    work, limits, owed = instance
    units = build_units(work, limits)
    packed = build_rounds(units, [unit.problem.greedy for unit in units], work, limits)
    merged = merge_microbatches(packed, limits, owed)
    for microbatches in (packed, merged):
        plan = Plan(limits, tuple(order_microbatches(microbatches, limits, owed)))
        assert verify_plan(plan, work, earliest_slots=owed) == []
    assert len(merged) <= len(packed)
    assert len(merged) >= bound_microbatches(work, limits)


@CHECKED
@given(draw_instance(), st.data())
def test_the_verifier_sees_every_single_change_of_what_runs(instance: Instance, data: st.DataObject) -> None:
    work, limits, _ = instance
    plan = plan_horizon(work, limits, solver_timeout_seconds=0)
    full = [p for p, microbatch in enumerate(plan.microbatches) if microbatch.segments]
    if not full:
        return
    position = data.draw(st.sampled_from(full))
    microbatches = list(plan.microbatches)
    kind = data.draw(st.sampled_from(["drop", "double", "lengthen"]))
    segments = list(microbatches[position].segments)
    first = segments[0]
    if kind == "drop":
        segments = segments[1:]
    elif kind == "double":
        segments[0] = type(first)(first.job, first.step, first.samples + first.samples[:1])
    else:
        longer = SampleRef(first.samples[0].draw, first.samples[0].num_tokens + 1)
        segments[0] = type(first)(first.job, first.step, (longer, *first.samples[1:]))
    microbatches[position] = Microbatch(tuple(segments))
    assert verify_plan(Plan(limits, tuple(microbatches)), work) != []


@CHECKED
@given(draw_instance(), st.data())
def test_the_verifier_refuses_an_order_exactly_when_the_simulator_finds_stale_weights(
    instance: Instance, data: st.DataObject
) -> None:
    work, limits, _ = instance
    microbatches = fill_best(work, limits, FillPolicy(limits.token_capacity))
    if len(microbatches) > 1:
        places = st.integers(0, len(microbatches) - 1)
        a, b = data.draw(places), data.draw(places)
        microbatches[a], microbatches[b] = microbatches[b], microbatches[a]
    plan = Plan(limits, tuple(microbatches))
    refused = any(violation.kind in ORDERING for violation in verify_plan(plan, work))
    assert bool(simulate(plan, CostModel()).stale) == refused
