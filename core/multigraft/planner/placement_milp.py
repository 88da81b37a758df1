"""Find room for refused jobs by placing the waiting ones otherwise, with a solver process.

What runs stays where it is and what greedy placed stays placed, somewhere; so the answer is never worse than greedy's.
It is checked here, whatever the solver says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multigraft.planner.placement import Demand, Room
from multigraft.planner.solver_pool import SolverPool

PLACEMENT = "placement"
MAX_REFUSED = 12  # that the solver tries to place: each counts twice as much as the next, down to solver tolerances
BYTES_PER_UNIT = 1 << 20  # memory is counted in MiB, rounded against us, so that the numbers stay small


@dataclass(frozen=True)
class PlacementProblem:
    """Jobs to place into what is free of the rooms; indices into the tuples."""

    free_slots: tuple[int, ...]
    free_memory: tuple[int, ...]  # MiB
    base_load: tuple[float, ...]  # seconds of those that stay
    speed: tuple[float, ...]  # tokens per second
    memory: tuple[int, ...]  # MiB of each job
    step_tokens: tuple[int, ...]
    allowed: tuple[tuple[int, ...], ...]  # rooms that each job may go to
    required: tuple[bool, ...]  # placed by greedy already; the others are in order of importance


@dataclass(frozen=True)
class PlacementTask:
    """See `SolverTask`."""

    problem: PlacementProblem

    def to_json(self) -> dict[str, Any]:
        """Give the problem as JSON data."""
        return {"kind": PLACEMENT, **self.problem.__dict__}

    def read_reply(self, message: dict[str, Any]) -> list[int | None]:
        """Read and check the room of each job, None where it has none."""
        rooms = message["roomOf"]
        problem = self.problem
        if not isinstance(rooms, list) or len(rooms) != len(problem.memory):
            raise KeyError("a room of each job")
        slots, memory = list(problem.free_slots), list(problem.free_memory)
        for job, room in enumerate(rooms):
            if room is None and not problem.required[job]:
                continue
            if type(room) is not int or room not in problem.allowed[job]:
                raise ValueError(f"job {job} has room {room!r:.40}")
            slots[room] -= 1
            memory[room] -= problem.memory[job]
        if min(slots) < 0 or min(memory) < 0:
            raise ValueError("a room holds more than it takes")
        return rooms


def read_placement_problem(data: dict[str, Any]) -> PlacementProblem:
    """Read what `PlacementTask.to_json` gave."""
    fields = {name: tuple(data[name]) for name in PlacementProblem.__dataclass_fields__}
    return PlacementProblem(**{**fields, "allowed": tuple(tuple(rooms) for rooms in data["allowed"])})


def find_better_rooms(
    rooms: Mapping[str, Room],
    refused: Sequence[Demand],
    movable: Collection[str],
    solver: SolverPool,
    budget_seconds: float,
) -> dict[str, Room] | None:
    """Find rooms that hold all that the given ones hold and one or more of the refused jobs; None if there are none.

    Args:
        rooms: What greedy made.
        refused: Jobs without a place, most important first.
        movable: Jobs that do not run yet, so that their room is free to choose.
        solver: Solver processes.
        budget_seconds: Wall-clock budget.
    """
    names = list(rooms)
    fixed = {n: Room(r.replica, {j: d for j, d in r.jobs.items() if j not in movable}) for n, r in rooms.items()}
    placed = [demand for room in rooms.values() for job, demand in room.jobs.items() if job in movable]
    wanted = [d for d in refused if any(room.could_ever_take(d) for room in rooms.values())][:MAX_REFUSED]
    if not wanted:
        return None
    demands = placed + wanted
    problem = PlacementProblem(
        tuple(fixed[name].free_slots for name in names),
        tuple(fixed[name].free_bytes // BYTES_PER_UNIT for name in names),
        tuple(fixed[name].load_seconds for name in names),
        tuple(fixed[name].replica.tokens_per_second for name in names),
        tuple(-(-demand.adapter_bytes // BYTES_PER_UNIT) for demand in demands),
        tuple(demand.step_tokens for demand in demands),
        tuple(tuple(i for i, name in enumerate(names) if fixed[name].takes(demand)) for demand in demands),
        tuple(index < len(placed) for index in range(len(demands))),
    )
    reply = solver.solve([PlacementTask(problem)], budget_seconds=budget_seconds).solved[0].reply
    if reply is None or all(room is None for room in reply[len(placed) :]):
        return None
    for demand, room in zip(demands, reply, strict=True):
        if room is not None:
            fixed[names[room]].jobs[demand.job] = demand
    return fixed
