"""Plan the next horizon while the present one runs, so that training never waits for a solver.

A plan that is not ready, or that was made for work which has changed since (a job joined, left, failed or stopped), is
void; then the greedy plan is made on the spot, which takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from multigraft.planner.cost import CostModel
from multigraft.planner.horizon import plan_horizon
from multigraft.planner.plan import JobWork, Plan, PlanLimits
from multigraft.planner.solver_pool import SolverPool


@dataclass(frozen=True)
class _Request:
    work: tuple[JobWork, ...]
    earliest_slots: tuple[tuple[str, int], ...]


class PlanAhead:
    """Plans in one background thread with solver processes of its own. `start` and `take` belong to one thread.

    Args:
        limits: What the machine takes.
        solver_timeout_seconds: Wall-clock budget of one plan's solves; 0: no solver and no processes.
        cost: Times by which plans are compared.
        solver: Solver processes, not closed here; default: a pool of its own.
    """

    def __init__(
        self,
        limits: PlanLimits,
        *,
        solver_timeout_seconds: float,
        cost: CostModel | None = None,
        solver: SolverPool | None = None,
    ) -> None:
        self._limits = limits
        self._seconds = solver_timeout_seconds
        self._cost = cost
        self._own_pool = SolverPool() if solver is None and solver_timeout_seconds > 0 else None
        self._solver = solver or self._own_pool
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plan-ahead")
        self._request: _Request | None = None
        self._future: Future[Plan] | None = None

    def start(self, work: Sequence[JobWork], earliest_slots: Mapping[str, int] | None = None) -> bool:
        """Begin to plan; False if an earlier plan is still being made, whose solver must end first."""
        if self._future is not None and not self._future.done():
            return False
        self._request = _build_request(work, earliest_slots)
        self._future = self._thread.submit(
            plan_horizon,
            self._request.work,
            self._limits,
            solver_timeout_seconds=self._seconds,
            earliest_slots=earliest_slots,
            cost=self._cost,
            solver=self._solver,
        )
        return True

    def take(self, work: Sequence[JobWork], earliest_slots: Mapping[str, int] | None = None) -> Plan:
        """Give a plan of exactly this work, at once: the one made ahead if it is ready, else greedy.

        Raises:
            ValueError: If the work cannot be planned.
        """
        future = self._future
        if future is not None and future.done() and self._request == _build_request(work, earliest_slots):
            made = None if future.exception() else future.result()
            if made is not None:  # else, whatever went wrong beside us, training goes on with greedy
                return made
        return plan_horizon(
            work, self._limits, solver_timeout_seconds=0, earliest_slots=earliest_slots, cost=self._cost
        )

    def close(self) -> None:
        """Stop the thread and end the solver processes that belong to it."""
        if self._own_pool is not None:
            self._own_pool.cancel()
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._own_pool is not None:
            self._own_pool.close()


def _build_request(work: Sequence[JobWork], earliest_slots: Mapping[str, int] | None) -> _Request:
    return _Request(tuple(work), tuple(sorted((earliest_slots or {}).items())))
