"""Place jobs greedily, with preemption and at most one move; see `placement` for the rules."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

from multigraft.planner.placement import (
    Demand,
    Eviction,
    Move,
    Placement,
    PlacementPolicy,
    Refusal,
    RefusalKind,
    Replica,
    Room,
    queue_order,
)
from multigraft.planner.placement_milp import find_better_rooms
from multigraft.planner.solver_pool import SolverPool

MAX_HOLDERS = 5  # named in a refusal


def place_jobs(
    replicas: Sequence[Replica],
    demands: Sequence[Demand],
    policy: PlacementPolicy,
    *,
    solver: SolverPool | None = None,
    solver_timeout_seconds: float = 0,
) -> Placement:
    """Place every job or say why not.

    Args:
        replicas: All replicas of the pool.
        demands: All jobs of the pool, running and waiting.
        policy: What this pass may do.
        solver: Solver processes; None: greedy only.
        solver_timeout_seconds: Wall-clock budget of the solver; 0: greedy only.

    Raises:
        ValueError: If a name occurs twice, or a number is out of range.
    """
    _check(replicas, demands)
    placer = _Placer(replicas, demands, policy)
    placer.keep_running()
    placer.place_waiting()
    if solver is not None and solver_timeout_seconds > 0 and placer.refused:
        placer.improve(solver, solver_timeout_seconds)
    move = placer.find_move()
    return placer.build(move)


class _Placer:
    def __init__(self, replicas: Sequence[Replica], demands: Sequence[Demand], policy: PlacementPolicy) -> None:
        self.policy = policy
        self.demands = demands
        self.rooms = {replica.name: Room(replica) for replica in sorted(replicas, key=lambda replica: replica.name)}
        self.waiting: list[tuple[tuple[int, int, str], Demand]] = []
        self.refused: list[Demand] = []
        self.evicted: dict[str, Eviction] = {}

    def keep_running(self) -> None:
        for demand in sorted(self.demands, key=queue_order):
            room = self.rooms.get(demand.running_on or "")
            if room is not None and room.takes(demand):
                room.jobs[demand.job] = demand
            else:
                heapq.heappush(self.waiting, (queue_order(demand), demand))

    def place_waiting(self) -> None:
        while self.waiting:
            demand = heapq.heappop(self.waiting)[1]
            room = self._find_room(demand) or self._make_room(demand)
            if room is None:
                self.refused.append(demand)
            else:
                room.jobs[demand.job] = demand

    def improve(self, solver: SolverPool, budget_seconds: float) -> None:
        movable = {d.job for d in self.demands if d.running_on is None or d.job in self.evicted}
        better = find_better_rooms(self.rooms, self.refused, movable, solver, budget_seconds)
        if better is not None:
            self.rooms = better
            placed = {job for room in better.values() for job in room.jobs}
            self.refused = [demand for demand in self.refused if demand.job not in placed]

    def find_move(self) -> Move | None:
        """Find the move of one running job that cuts the highest load most, if by enough."""
        if len(self.rooms) < 2:
            return None
        source = max(self.rooms.values(), key=lambda room: (room.load_seconds, room.replica.name))
        highest = source.load_seconds
        moves = []
        for demand in sorted(source.jobs.values(), key=queue_order):
            if demand.running_on != source.replica.name or not demand.may_be_moved:
                continue
            for target in self.rooms.values():
                if target is not source and target.takes(demand):
                    others = [room.load_seconds for room in self.rooms.values() if room not in (source, target)]
                    rest = source.load_seconds - demand.step_tokens / source.replica.tokens_per_second
                    after = max([rest, target.load_with([demand]), *others])
                    moves.append(Move(demand.job, source.replica.name, target.replica.name, 1 - after / highest))
        best = max(moves, key=lambda move: move.gain, default=None)
        return best if best is not None and best.gain >= self.policy.min_move_gain else None

    def build(self, move: Move | None) -> Placement:
        replica_of = {job: name for name, room in self.rooms.items() for job in room.jobs}
        evictions = [e for e in self.evicted.values() if replica_of.get(e.job) != e.replica]
        if move is not None:
            replica_of[move.job] = move.target
        refusals = {d.job: self._explain(d, position) for position, d in enumerate(self.refused, start=1)}
        return Placement(replica_of, refusals, tuple(evictions), () if move is None else (move,))

    def _find_room(self, demand: Demand) -> Room | None:
        rooms = [room for room in self.rooms.values() if room.takes(demand)]
        return min(rooms, key=lambda room: (room.load_with([demand]), room.replica.name), default=None)

    def _make_room(self, demand: Demand) -> Room | None:
        if not self.policy.preempt_lower_priority:
            return None
        choices = []
        for room in self.rooms.values():
            victims = _choose_victims(room, demand)
            if victims:
                choices.append((max(v.priority for v in victims), len(victims), room.replica.name, victims))
        if not choices:
            return None
        _, _, name, victims = min(choices, key=lambda choice: choice[:3])
        for victim in victims:
            del self.rooms[name].jobs[victim.job]
            if victim.running_on == name:
                self.evicted[victim.job] = Eviction(victim.job, name, demand.job)
            heapq.heappush(self.waiting, (queue_order(victim), victim))
        return self.rooms[name]

    def _explain(self, demand: Demand, position: int) -> Refusal:
        rooms = [room for room in self.rooms.values() if room.replica.takes_jobs and room.replica.num_slots > 0]
        if not rooms:
            return Refusal(RefusalKind.NO_REPLICA, 1, 0, position, ())
        highest = max(room.replica.max_rank for room in rooms)
        if demand.rank > highest:
            return Refusal(RefusalKind.RANK_TOO_HIGH, demand.rank, highest, position, ())
        able = [room for room in rooms if room.could_ever_take(demand)]
        if not able:
            largest = max(room.replica.adapter_bytes for room in rooms if demand.rank <= room.replica.max_rank)
            return Refusal(RefusalKind.ADAPTER_TOO_LARGE, demand.adapter_bytes, largest, position, ())
        holders = [d for room in able for d in room.jobs.values()]
        named = tuple(d.job for d in sorted(holders, key=queue_order)[:MAX_HOLDERS])
        with_slot = [room for room in able if room.free_slots > 0]
        if not with_slot:
            return Refusal(RefusalKind.NO_FREE_SLOT, 1, 0, position, named)
        free = max(room.free_bytes for room in with_slot)
        return Refusal(RefusalKind.NO_FREE_MEMORY, demand.adapter_bytes, free, position, named)


def _choose_victims(room: Room, demand: Demand) -> list[Demand]:
    """Choose the jobs of lower priority that have to go, lowest and youngest first; [] if that makes no room."""
    if not room.could_ever_take(demand):
        return []
    lower = [
        other
        for other in room.jobs.values()
        if other.priority < demand.priority and (other.may_be_moved or other.running_on != room.replica.name)
    ]
    left = Room(room.replica, dict(room.jobs))
    victims = []
    for other in sorted(lower, key=queue_order, reverse=True):
        if left.takes(demand):
            break
        del left.jobs[other.job]
        victims.append(other)
    return victims if left.takes(demand) else []


def _check(replicas: Sequence[Replica], demands: Sequence[Demand]) -> None:
    _check_unique("replica", [replica.name for replica in replicas])
    _check_unique("job", [demand.job for demand in demands])
    for replica in replicas:
        if replica.num_slots < 0 or replica.max_rank < 0 or replica.adapter_bytes < 0 or replica.tokens_per_second <= 0:
            raise ValueError(
                f"replica {replica.name}: {replica}: tokens_per_second must be above 0, the others 0 or more"
            )
    for demand in demands:
        if demand.rank < 1 or demand.adapter_bytes < 0 or demand.step_tokens < 0:
            raise ValueError(f"job {demand.job}: {demand}: rank must be 1 or more, bytes and tokens 0 or more")


def _check_unique(what: str, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{what} {name}: listed {count} times")
