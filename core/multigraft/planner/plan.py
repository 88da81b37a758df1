"""The plan: which samples run together, in which order. Plain data with a content hash; JSON on disk.

A plan is made from lengths alone. It covers, for each job, some of its next global batches, whole; nothing of it runs
before `verify_plan` accepted it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PLAN_FORMAT = 1


class Outcome(StrEnum):
    """How the packing was found."""

    OPTIMAL = "Optimal"  # proved: no plan of this work has fewer microbatches
    FEASIBLE = "Feasible"  # a solver took part; `gap` says how far the bound is
    GREEDY = "Greedy"  # no solver took part; `SolverUse` says why


@dataclass(frozen=True, order=True)
class SampleRef:
    """One visit of one sample: `draw` is its position in the job's endless sample order (epochs end to end)."""

    draw: int
    num_tokens: int


@dataclass(frozen=True)
class GlobalBatch:
    """The samples of one optimizer step of one job that still have to run."""

    step: int  # 0-based optimizer step of the job
    samples: tuple[SampleRef, ...]


@dataclass(frozen=True)
class JobWork:
    """What a plan has to cover for one job: consecutive global batches, in order."""

    job: str
    global_batches: tuple[GlobalBatch, ...]
    priority: int = 0


@dataclass(frozen=True)
class Segment:
    """Samples of one global batch of one job inside a microbatch; their tokens are contiguous, in this order."""

    job: str
    step: int
    samples: tuple[SampleRef, ...]

    @property
    def num_tokens(self) -> int:
        return sum(sample.num_tokens for sample in self.samples)


@dataclass(frozen=True)
class Microbatch:
    """What one forward takes: segments of different jobs; an empty one is a pipeline no-op."""

    segments: tuple[Segment, ...]

    @property
    def num_tokens(self) -> int:
        return sum(segment.num_tokens for segment in self.segments)

    def padded_tokens(self, tile_tokens: int) -> int:
        """Count tokens after each segment is padded to whole tiles."""
        return sum(-(-segment.num_tokens // tile_tokens) * tile_tokens for segment in self.segments)


@dataclass(frozen=True)
class PlanLimits:
    """What the machine that runs the plan can take."""

    token_capacity: int  # tokens of one microbatch after padding to tiles
    tile_tokens: int = 1  # an adapter's tokens in a microbatch are padded to a multiple of this
    num_stages: int = 1  # pipeline stages; a job's next step starts at least this many slots after its last one
    num_replicas: int = 1  # data-parallel: microbatch p runs on replica p % num_replicas in slot p // num_replicas


@dataclass(frozen=True)
class SolverUse:
    """What became of a plan's packing problems; information only."""

    num_problems: int = 0
    num_fewest: int = 0  # packing proved to need the fewest microbatches, by a bound or by the solver
    num_proved: int = 0  # of those, the smallest microbatch proved as small as can be
    num_asked: int = 0  # given to the solver
    failures: tuple[tuple[str, int], ...] = ()  # typed reason (`SolveFailure`) and count of those that kept greedy's
    detail: str = ""  # of the first failure, or why no solver was asked


@dataclass(frozen=True)
class Plan:
    """Microbatches in execution order, with what was known about their quality."""

    limits: PlanLimits
    microbatches: tuple[Microbatch, ...]
    outcome: Outcome = Outcome.GREEDY
    lower_bound: int = 0  # microbatches that any plan of this work needs
    solver_seconds: float = field(default=0.0, compare=False)  # information only; not part of the hash
    packer: str = field(default="", compare=False)  # which way of packing won; information only
    solver_use: SolverUse = field(default=SolverUse(), compare=False)

    @property
    def fill(self) -> float:
        """Give the share of the capacity that real tokens fill, over non-empty microbatches."""
        full = [microbatch for microbatch in self.microbatches if microbatch.segments]
        if not full:
            return 0.0
        return sum(m.num_tokens for m in full) / (len(full) * self.limits.token_capacity)

    @property
    def num_microbatches(self) -> int:
        """Count the microbatches that are not no-ops."""
        return sum(1 for microbatch in self.microbatches if microbatch.segments)

    @property
    def num_no_ops(self) -> int:
        """Count the places where nothing may run."""
        return len(self.microbatches) - self.num_microbatches

    @property
    def gap(self) -> float:
        """Give how far the number of microbatches is above the lower bound, as a share of the bound."""
        return 0.0 if self.lower_bound == 0 else self.num_microbatches / self.lower_bound - 1

    def to_json(self) -> dict[str, Any]:
        """Give the plan as JSON data; `hash` covers what runs, not how long it took to find."""
        body = {
            "format": PLAN_FORMAT,
            "tokenCapacity": self.limits.token_capacity,
            "tileTokens": self.limits.tile_tokens,
            "numStages": self.limits.num_stages,
            "numReplicas": self.limits.num_replicas,
            "microbatches": [
                [
                    {
                        "job": segment.job,
                        "step": segment.step,
                        "samples": [[sample.draw, sample.num_tokens] for sample in segment.samples],
                    }
                    for segment in microbatch.segments
                ]
                for microbatch in self.microbatches
            ],
        }
        return {
            **body,
            "hash": _hash_json(body),
            "outcome": self.outcome.value,
            "lowerBound": self.lower_bound,
            "solverSeconds": self.solver_seconds,
            "packer": self.packer,
        }

    @property
    def hash(self) -> str:
        """Give the SHA-256 of what the plan runs, in hex."""
        return str(self.to_json()["hash"])

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """Read a plan.

        Raises:
            ValueError: If the format is unknown or the hash does not match the content.
        """
        if data.get("format") != PLAN_FORMAT:
            raise ValueError(f"plan format: got {data.get('format')!r}, this version reads {PLAN_FORMAT}")
        plan = cls(
            limits=PlanLimits(data["tokenCapacity"], data["tileTokens"], data["numStages"], data["numReplicas"]),
            microbatches=tuple(
                Microbatch(
                    tuple(
                        Segment(s["job"], s["step"], tuple(SampleRef(draw, tokens) for draw, tokens in s["samples"]))
                        for s in segments
                    )
                )
                for segments in data["microbatches"]
            ),
            outcome=Outcome(data["outcome"]),
            lower_bound=data["lowerBound"],
            solver_seconds=data["solverSeconds"],
            packer=data.get("packer", ""),
        )
        if plan.hash != data["hash"]:
            raise ValueError(f"plan hash: file says {data['hash']}, content gives {plan.hash}")
        return plan


def _hash_json(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
