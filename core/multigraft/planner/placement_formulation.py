"""Place jobs into free rooms: as a mixed-integer programme.

    maximize    sum_j weight[j] sum_r place[j, r] - balance * highest
    subject to  sum_r place[j, r] = 1                             a job that has a place keeps one
                sum_r place[j, r] <= 1                            another one may get one
                sum_j place[j, r] <= free_slots[r]
                sum_j memory[j] place[j, r] <= free_memory[r]
                base_load[r] + sum_j tokens[j] / speed[r] place[j, r] <= highest

The i-th job without a place weighs 2^-i, more than all after it together. The highest load only breaks ties: its factor
is below the smallest weight over the highest load possible.
"""

from __future__ import annotations

from typing import Any

import pulp

from multigraft.planner.placement_milp import PlacementProblem


def solve_placement(problem: PlacementProblem, *, solver: Any) -> list[int | None]:
    """Solve with a PuLP solver; the room of each job, None where it has none.

    Raises:
        RuntimeError: If the solver found no solution in its time.
    """
    programme = pulp.LpProblem("placement", pulp.LpMaximize)
    jobs, rooms = range(len(problem.memory)), range(len(problem.free_slots))
    place = [{r: programme.add_variable(f"place_{j}_{r}", cat="Binary") for r in problem.allowed[j]} for j in jobs]
    highest = programme.add_variable("highest", 0)
    optional = [j for j in jobs if not problem.required[j]]
    gain = pulp.lpSum(2.0**-i * variable for i, j in enumerate(optional) for variable in place[j].values())
    programme += gain - _balance(problem, len(optional)) * highest
    for j in jobs:
        if problem.required[j]:
            programme += pulp.lpSum(place[j].values()) == 1  # a job that has a place keeps one
        else:
            programme += pulp.lpSum(place[j].values()) <= 1  # another one may get one
    for r in rooms:
        inside = [j for j in jobs if r in place[j]]
        programme += pulp.lpSum(place[j][r] for j in inside) <= problem.free_slots[r]
        programme += pulp.lpSum(problem.memory[j] * place[j][r] for j in inside) <= problem.free_memory[r]
        seconds = pulp.lpSum(problem.step_tokens[j] / problem.speed[r] * place[j][r] for j in inside)
        programme += problem.base_load[r] + seconds <= highest
    programme.solve(solver)
    if programme.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        raise RuntimeError(f"no solution: {pulp.LpSolution[programme.sol_status]}")
    return [next((r for r, v in place[j].items() if (v.varValue or 0) > 0.5), None) for j in jobs]


def _balance(problem: PlacementProblem, num_optional: int) -> float:
    worst = max(problem.base_load, default=0.0) + sum(problem.step_tokens) / min(problem.speed, default=1.0)
    return float(2.0 ** -(num_optional + 1) / max(worst, 1e-9))
