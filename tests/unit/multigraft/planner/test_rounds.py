from __future__ import annotations

from builders.planning import make_work
from multigraft.planner.plan import PlanLimits
from multigraft.planner.rounds import build_rounds, build_units


def test_one_problem_per_round_and_group_in_the_order_of_running() -> None:
    work = [make_work("a", [300] * 4, [300] * 4), make_work("b", [100] * 4, [100] * 4, [100])]
    units = build_units(work, PlanLimits(400, 1, 4))
    got = [sorted({(item.adapter, item.step) for item in unit.items}) for unit in units]
    assert got == [[(0, 0)], [(1, 0)], [(0, 1)], [(1, 1)], [(1, 2)]]


def test_a_round_of_one_group_holds_all_jobs() -> None:
    (unit,) = build_units([make_work("a", [3]), make_work("b", [4])], PlanLimits(10))
    assert unit.problem.adapters == (0, 1)
    assert unit.is_proved
    assert not unit.is_solvable


def test_what_bounds_leave_open_is_for_the_solver_unless_it_is_too_large() -> None:
    (hard,) = build_units([make_work("a", [21, 29, 16, 11, 28, 14, 34, 24])], PlanLimits(60))
    assert hard.is_solvable
    assert not hard.is_fewest
    (large,) = build_units([make_work("a", [21, 29, 16, 11, 28, 14, 34, 24] * 40)], PlanLimits(60))
    assert not large.is_proved
    assert not large.is_solvable


def test_the_fullest_microbatch_of_a_problem_comes_first() -> None:
    work = [make_work("a", [2, 9])]
    units = build_units(work, PlanLimits(10))
    microbatches = build_rounds(units, [[0, 1]], work, PlanLimits(10))
    assert [m.num_tokens for m in microbatches] == [9, 2]
