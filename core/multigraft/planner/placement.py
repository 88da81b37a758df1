"""Which job trains on which replica of a pool: vector packing on slots, rank and memory, balanced by load.

    1  Running jobs stay where they are, as long as their replica takes them.
    2  Waiting jobs, higher priority first and then first come first, go to the replica that they leave least loaded.
    3  A job for which there is no room may take that of jobs with lower priority (fewest, lowest, youngest first).
    4  A solver may find room for refused jobs by placing the waiting ones otherwise; what is placed stays placed.
    5  At most one running job moves per pass, and only if that cuts the highest load by `min_move_gain`.

Load is seconds for one step of every job on a replica: tokens of their steps over the replica's measured tokens per
second. Pure and deterministic; nothing here is believed: `find_placement_faults` checks the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True)
class Replica:
    """One trainer with its own copy of the base model."""

    name: str
    num_slots: int
    max_rank: int
    adapter_bytes: int  # memory for adapters and their optimizer state, beside the base model and activations
    tokens_per_second: float  # measured, or estimated for the device
    takes_jobs: bool = True  # False: not ready, or draining; its jobs go elsewhere


@dataclass(frozen=True)
class Demand:
    """What a job needs of a replica."""

    job: str
    rank: int
    adapter_bytes: int
    step_tokens: int  # of one global batch, about
    queued_at: int = 0  # any clock; earlier goes first within a priority
    priority: int = 0
    running_on: str | None = None
    may_be_moved: bool = False  # it ran long enough to be preempted or moved


@dataclass(frozen=True)
class PlacementPolicy:
    """What a pass may do."""

    preempt_lower_priority: bool = True
    min_move_gain: float = 0.25  # share of the highest load that a move has to save


class RefusalKind(StrEnum):
    """Why a job has no place."""

    NO_REPLICA = "NoReplica"
    RANK_TOO_HIGH = "RankTooHigh"
    ADAPTER_TOO_LARGE = "AdapterTooLarge"
    NO_FREE_SLOT = "NoFreeSlot"
    NO_FREE_MEMORY = "NoFreeMemory"


@dataclass(frozen=True)
class Refusal:
    """Why a job has no place, with numbers: slots, rank or bytes, by kind."""

    kind: RefusalKind
    needed: int
    free: int  # the most that any replica has (of rank and adapter size: could ever have)
    position: int  # in the queue, 1 is next
    held_by: tuple[str, ...]  # jobs that hold what is needed, a few


@dataclass(frozen=True)
class Eviction:
    """A running job that gives its place to one of higher priority, after a checkpoint."""

    job: str
    replica: str
    in_favour_of: str


@dataclass(frozen=True)
class Move:
    """A running job that goes to another replica, after a checkpoint."""

    job: str
    source: str
    target: str
    gain: float  # share of the highest load that it saves


@dataclass(frozen=True)
class Placement:
    """The whole answer of one pass; every job is either placed or refused."""

    replica_of: Mapping[str, str]
    refusals: Mapping[str, Refusal]
    evictions: tuple[Eviction, ...] = ()
    moves: tuple[Move, ...] = ()


@dataclass
class Room:
    """What is left of a replica while jobs are placed."""

    replica: Replica
    jobs: dict[str, Demand] = field(default_factory=dict)

    @property
    def free_slots(self) -> int:
        return self.replica.num_slots - len(self.jobs)

    @property
    def free_bytes(self) -> int:
        return self.replica.adapter_bytes - sum(demand.adapter_bytes for demand in self.jobs.values())

    @property
    def load_seconds(self) -> float:
        return self.load_with(())

    def load_with(self, more: Iterable[Demand]) -> float:
        tokens = sum(demand.step_tokens for demand in (*self.jobs.values(), *more))
        return tokens / self.replica.tokens_per_second

    def could_ever_take(self, demand: Demand) -> bool:
        replica = self.replica
        return (
            replica.takes_jobs
            and replica.num_slots > 0
            and demand.rank <= replica.max_rank
            and demand.adapter_bytes <= replica.adapter_bytes
        )

    def takes(self, demand: Demand) -> bool:
        return self.could_ever_take(demand) and self.free_slots > 0 and demand.adapter_bytes <= self.free_bytes


def queue_order(demand: Demand) -> tuple[int, int, str]:
    """Order jobs as they are served: higher priority, then first come, then name."""
    return -demand.priority, demand.queued_at, demand.job


def find_placement_faults(placement: Placement, replicas: Sequence[Replica], demands: Sequence[Demand]) -> list[str]:
    """List what is wrong with a placement: jobs lost or doubled, or more on a replica than it takes."""
    faults = []
    rooms = {replica.name: Room(replica) for replica in replicas}
    placed, refused = set(placement.replica_of), set(placement.refusals)
    asked = {demand.job for demand in demands}
    faults += [f"job {job} is neither placed nor refused" for job in sorted(asked - placed - refused)]
    faults += [f"job {job} is both placed and refused" for job in sorted(placed & refused)]
    faults += [f"job {job} was not asked for" for job in sorted((placed | refused) - asked)]
    for demand in sorted(demands, key=queue_order):
        name = placement.replica_of.get(demand.job)
        if name is None:
            continue
        if name not in rooms:
            faults.append(f"job {demand.job} is on {name}, which is no replica")
        elif not rooms[name].takes(demand):
            faults.append(f"job {demand.job} does not fit on {name}")
        else:
            rooms[name].jobs[demand.job] = demand
    return faults
