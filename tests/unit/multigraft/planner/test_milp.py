from __future__ import annotations

import numpy as np
import pulp
import pytest

from builders.packing_problems import make_problem, make_random_problem, search_exhaustively
from multigraft.planner.formulation import renumber
from multigraft.planner.milp import solve_packing
from multigraft.planner.packing_check import find_packing_fault
from multigraft.planner.packing_problem import SolverName, count_tiles, is_smallest_at_bound

HARD = [35, 28, 24, 23, 19, 18, 16, 13]  # in bins of 60 first-fit decreasing needs 4, 3 are enough


@pytest.mark.parametrize("solver", list(SolverName))
@pytest.mark.parametrize("tile", [1, 8, 16])
@pytest.mark.parametrize("seed", range(6))
def test_both_stages_equal_exhaustive_search_on_small_instances(solver: SolverName, tile: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_samples = int(rng.integers(1, 9))
    problem = make_random_problem(seed, num_samples=num_samples, num_adapters=3, capacity=64, tile=tile)
    reply = solve_packing(problem, solver=solver, time_limit_seconds=60)
    tiles = count_tiles(problem, reply.bin_of)
    want = search_exhaustively(problem)
    assert find_packing_fault(problem, reply.bin_of) is None
    assert (len(tiles), min(tiles.values())) == want
    assert reply.fewest_proved
    assert reply.smallest_proved
    assert problem.min_bins <= want[0] <= max(problem.greedy) + 1


@pytest.mark.parametrize("solver", list(SolverName))
def test_the_solver_beats_first_fit_decreasing_where_it_is_known_to_fail(solver: SolverName) -> None:
    problem = make_problem(HARD, capacity=60)
    assert max(problem.greedy) + 1 == 4
    reply = solve_packing(problem, solver=solver, time_limit_seconds=60)
    assert sorted(count_tiles(problem, reply.bin_of).values()) == [57, 59, 60]


def test_a_packing_that_bounds_prove_best_is_not_solved() -> None:
    problem = make_problem([10, 10], capacity=20)
    reply = solve_packing(problem, solver=SolverName.CBC, time_limit_seconds=60, cbc_path="/no/such/file")
    assert reply.bin_of == problem.greedy
    assert reply.fewest_proved


def test_without_time_the_greedy_packing_comes_back_unproved() -> None:
    problem = make_random_problem(0, num_samples=30, num_adapters=4, capacity=1000, tile=16)
    reply = solve_packing(problem, solver=SolverName.HIGHS, time_limit_seconds=0)
    assert reply.bin_of == problem.greedy
    assert not reply.smallest_proved


@pytest.mark.parametrize("solver", list(SolverName))
def test_G04_a_solve_cut_by_its_time_limit_claims_no_proof_and_gives_a_packing_that_can_be_judged(
    solver: SolverName,
) -> None:
    problem = make_random_problem(1, num_samples=400, num_adapters=4, capacity=4096, tile=64)
    reply = solve_packing(problem, solver=solver, time_limit_seconds=0.01)
    assert not reply.smallest_proved or is_smallest_at_bound(problem, reply.bin_of)
    assert len(reply.bin_of) == 400


def test_G10_a_missing_solver_is_an_error_not_a_packing() -> None:
    problem = make_problem(HARD, capacity=60)
    with pytest.raises(pulp.PulpSolverError, match="CBC: no file /no/such/file"):
        solve_packing(problem, solver=SolverName.CBC, time_limit_seconds=5, cbc_path="/no/such/file")


def test_warm_start_names_bins_as_stage_two_does() -> None:
    problem = make_problem([9, 5, 5, 3], capacity=10)
    assert renumber(problem, [2, 1, 1, 0]) == [0, 1, 1, 2]
