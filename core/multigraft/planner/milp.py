"""Solve one packing problem with HiGHS or CBC, through PuLP, within a time limit. Runs in a solver process.

Nothing here is believed by the caller: it checks every packing itself. One thread per solve.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import highspy
import pulp

from multigraft.planner.formulation import Formulation, build_fewest_bins, build_smallest_bin
from multigraft.planner.packing_problem import PackingProblem, PackingReply, SolverName, is_smallest_at_bound


class _WarmHighs(pulp.HiGHS):  # type: ignore[misc]
    """HiGHS that starts from the variables' initial values, where all of them are set."""

    def callSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802
        values = [variable.varValue for variable in lp.variables()]
        if any(value is not None for value in values):
            solution = highspy.HighsSolution()
            solution.col_value = [0.0 if value is None else float(value) for value in values]
            lp.solverModel.setSolution(solution)
        super().callSolver(lp)


def solve_packing(
    problem: PackingProblem, *, solver: SolverName, time_limit_seconds: float, cbc_path: str | None = None
) -> PackingReply:
    """Run both stages; what greedy already proved is not solved again.

    Raises:
        pulp.PulpSolverError: If the solver is missing or cannot be run.
    """
    deadline = time.monotonic() + time_limit_seconds
    bin_of: Sequence[int] = problem.greedy
    num_bins = max(bin_of) + 1
    fewest_proved = num_bins <= problem.min_bins
    if not fewest_proved:
        stage_one = build_fewest_bins(problem, num_bins - 1)
        status = _solve(stage_one, solver, deadline, cbc_path)
        fewest_proved = status == pulp.LpSolutionOptimal or stage_one.programme.status == pulp.LpStatusInfeasible
        if status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            bin_of = _close_gaps(stage_one.read_bins())
    if min(bin_of) < 0 or max(bin_of) < 1:
        return PackingReply(tuple(bin_of), fewest_proved, fewest_proved)
    return _shrink_smallest(problem, bin_of, fewest_proved, solver, deadline, cbc_path)


def _shrink_smallest(
    problem: PackingProblem,
    bin_of: Sequence[int],
    fewest_proved: bool,
    solver: SolverName,
    deadline: float,
    cbc_path: str | None,
) -> PackingReply:
    if is_smallest_at_bound(problem, bin_of):
        return PackingReply(tuple(bin_of), fewest_proved, smallest_proved=True)
    stage_two = build_smallest_bin(problem, bin_of)
    status = _solve(stage_two, solver, deadline, cbc_path)
    if status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        bin_of = stage_two.read_bins()
    return PackingReply(tuple(bin_of), fewest_proved, status == pulp.LpSolutionOptimal)


def _solve(formulation: Formulation, solver: SolverName, deadline: float, cbc_path: str | None) -> int:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        return int(pulp.LpSolutionNoSolutionFound)
    formulation.programme.solve(build_solver(solver, seconds, cbc_path))
    return int(formulation.programme.sol_status)


def build_solver(solver: SolverName, seconds: float, cbc_path: str | None = None) -> Any:
    """Build PuLP's solver object: one thread, wall-clock limit, no gap.

    Raises:
        pulp.PulpSolverError: If CBC's binary is not there.
    """
    if solver is SolverName.HIGHS:
        return _WarmHighs(msg=False, threads=1, timeLimit=seconds, gapRel=0.0, random_seed=0)
    path = cbc_path or str(pulp.apis.coin_api.pulp_cbc_path)
    if not Path(path).is_file():
        raise pulp.PulpSolverError(f"CBC: no file {path}")
    return pulp.COIN_CMD(path=path, msg=False, threads=1, timeLimit=seconds, gapRel=0.0, timeMode="elapsed")


def _close_gaps(bin_of: Sequence[int]) -> list[int]:
    if min(bin_of) < 0:
        return list(bin_of)
    new = {b: number for number, b in enumerate(sorted(set(bin_of)))}
    return [new[b] for b in bin_of]
