"""Plan the next global batches of every job on a pool.

Several ways of packing compete; the one whose simulated run ends first wins, full or not:

    best-fill      fill one microbatch after the other from the jobs' queues (`best_fill`)
    rounds         pack round by round with first-fit decreasing, merge, order (`rounds`, `merge`, `order`)
    rounds+solver  the same with the solver's packings, where there is time and the plan is not proved best without

Whatever they make is checked by `verify_plan`; one that breaks a rule does not take part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from multigraft.planner.best_fill import fill_best
from multigraft.planner.bounds import bound_microbatches
from multigraft.planner.cost import CostModel
from multigraft.planner.merge import merge_microbatches
from multigraft.planner.order import order_microbatches
from multigraft.planner.packing_problem import PackingReply
from multigraft.planner.packing_task import PackingTask
from multigraft.planner.plan import JobWork, Microbatch, Outcome, Plan, PlanLimits, SolverUse
from multigraft.planner.rounds import Unit, build_rounds, build_units
from multigraft.planner.simulate import simulate
from multigraft.planner.solver_pool import Solved, SolverPool
from multigraft.planner.tuning import choose_fill_policy
from multigraft.planner.verify import PlanRefusedError, verify_plan
from multigraft.planner.work_check import check_work

MAX_ROUND_SAMPLES = 4096  # first-fit decreasing takes the square of it; best-fill alone plans larger rounds


def plan_horizon(
    work: Sequence[JobWork],
    limits: PlanLimits,
    *,
    solver_timeout_seconds: float,
    earliest_slots: Mapping[str, int] | None = None,
    cost: CostModel | None = None,
    solver: SolverPool | None = None,
) -> Plan:
    """Plan all of the work; the result passed `verify_plan`. Jobs advance evenly in steps.

    The same input gives the same plan, except that a solver may or may not finish in time.

    Args:
        work: Jobs with their next global batches, in any order; jobs may differ from one horizon to the next.
        limits: What the machine takes.
        solver_timeout_seconds: Wall-clock budget of all of this plan's solves together; 0: no solver. Only with
            `solver`: a caller that waits for the plan wants none, `plan_ahead` has time for one.
        earliest_slots: Per job, the first slot in which its first step here may start; see `order_microbatches`.
        cost: Times by which plans are compared; default: `CostModel()`.
        solver: Solver processes; None: no solver.

    Raises:
        ValueError: If the work cannot be planned, e.g. a sample is longer than the capacity.
        PlanRefusedError: If the verifier refused every plan, which is a fault of the planner.
    """
    if not solver_timeout_seconds >= 0:  # nor NaN
        raise ValueError(f"solver_timeout_seconds: got {solver_timeout_seconds}, allowed 0 or more")
    check_work(work, limits)
    return _Planner(work, limits, earliest_slots or {}, cost or CostModel()).plan(solver_timeout_seconds, solver)


class _Planner:
    def __init__(
        self, work: Sequence[JobWork], limits: PlanLimits, earliest_slots: Mapping[str, int], cost: CostModel
    ) -> None:
        self.work = work
        self.limits = limits
        self.earliest_slots = earliest_slots
        self.cost = cost
        self.lower_bound = bound_microbatches(work, limits)

    def plan(self, solver_timeout_seconds: float, solver: SolverPool | None) -> Plan:
        policy = choose_fill_policy(self.work, self.limits, self.cost, self.earliest_slots)
        filled = self._build("best-fill", fill_best(self.work, self.limits, policy, self.earliest_slots))
        if self._is_best(filled) or _count_largest_round(self.work) > MAX_ROUND_SAMPLES:
            return self._choose([filled])
        units = build_units(self.work, self.limits)
        rounds = self._build_rounds("rounds", units, [unit.problem.greedy for unit in units])
        if solver is None or solver_timeout_seconds == 0:
            use = _count_use(units, [None] * len(units))
            return replace(self._choose([filled, rounds]), solver_use=use)
        solved, seconds = _solve(units, solver, solver_timeout_seconds)
        packings = [
            unit.problem.greedy if s is None or s.reply is None else s.reply.bin_of
            for unit, s in zip(units, solved, strict=True)
        ]
        with_solver = self._build_rounds("rounds+solver", units, packings)
        best = self._choose([filled, rounds, with_solver])
        return replace(best, solver_seconds=seconds, solver_use=_count_use(units, solved))

    def _build_rounds(self, packer: str, units: Sequence[Unit], packings: Sequence[Sequence[int]]) -> Plan:
        packed = build_rounds(units, packings, self.work, self.limits)
        merged = merge_microbatches(packed, self.limits, self.earliest_slots)
        return self._build(packer, order_microbatches(merged, self.limits, self.earliest_slots))

    def _build(self, packer: str, microbatches: Sequence[Microbatch]) -> Plan:
        plan = Plan(self.limits, tuple(microbatches), lower_bound=self.lower_bound, packer=packer)
        if plan.num_microbatches <= self.lower_bound:
            return replace(plan, outcome=Outcome.OPTIMAL)
        return replace(plan, outcome=Outcome.FEASIBLE if packer == "rounds+solver" else Outcome.GREEDY)

    def _is_best(self, plan: Plan) -> bool:
        """Say whether nothing can be gained: on one stage, with no fewer microbatches possible."""
        return self.limits.num_stages == 1 and plan.outcome is Outcome.OPTIMAL

    def _choose(self, plans: Sequence[Plan]) -> Plan:
        """Give the plan that ends first among those that the verifier accepts; the earlier one of equals."""
        violations = [verify_plan(plan, self.work, earliest_slots=self.earliest_slots) for plan in plans]
        good = [plan for plan, broken in zip(plans, violations, strict=True) if not broken]
        if not good:
            raise PlanRefusedError(violations[0])
        return min(good, key=lambda plan: simulate(plan, self.cost).makespan_ms)


def _count_largest_round(work: Sequence[JobWork]) -> int:
    rounds = zip_longest(*(job.global_batches for job in work))
    return max((sum(len(batch.samples) for batch in one if batch is not None) for one in rounds), default=0)


def _solve(
    units: Sequence[Unit], pool: SolverPool, budget_seconds: float
) -> tuple[list[Solved[PackingReply] | None], float]:
    """Give, per unit, what the solver made of it, None where it was not asked, and the seconds it took.

    Those where a microbatch may be saved share the whole budget; the others share what these leave.
    """
    asked = [index for index, unit in enumerate(units) if unit.is_solvable]
    results: dict[int, Solved[PackingReply]] = {}
    seconds = 0.0
    for is_fewest in (False, True):
        chosen = [index for index in asked if units[index].is_fewest is is_fewest]
        tasks = [PackingTask(units[index].problem) for index in chosen]
        batch = pool.solve(tasks, budget_seconds=budget_seconds - seconds)
        results |= zip(chosen, batch.solved, strict=True)
        seconds += batch.seconds
    return [results.get(index) for index in range(len(units))], seconds


def _count_use(units: Sequence[Unit], solved: Sequence[Solved[PackingReply] | None]) -> SolverUse:
    replies = [None if one is None else one.reply for one in solved]
    failed = [one for one in solved if one is not None and one.failure is not None]
    num_asked = sum(one is not None for one in solved)
    by_solver = [(r.fewest_proved, r.fewest_proved and r.smallest_proved) if r else (False, False) for r in replies]
    pairs = list(zip(units, by_solver, strict=True))
    return SolverUse(
        num_problems=len(units),
        num_fewest=sum(unit.is_fewest or fewest for unit, (fewest, _) in pairs),
        num_proved=sum(unit.is_proved or both for unit, (_, both) in pairs),
        num_asked=num_asked,
        failures=tuple(sorted(Counter(str(one.failure) for one in failed).items())),
        detail=failed[0].detail if failed else "" if num_asked else "no solver was to be asked",
    )
