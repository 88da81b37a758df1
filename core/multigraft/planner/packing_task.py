"""A packing problem on its way to a solver process and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from multigraft.planner.packing_check import find_packing_fault
from multigraft.planner.packing_problem import PackingProblem, PackingReply

PACKING = "packing"


@dataclass(frozen=True)
class PackingTask:
    """See `SolverTask`."""

    problem: PackingProblem

    def to_json(self) -> dict[str, Any]:
        """Give the problem as JSON data."""
        problem = self.problem
        return {
            "kind": PACKING,
            "lengths": problem.lengths,
            "adapters": problem.adapters,
            "tokenCapacity": problem.token_capacity,
            "tileTokens": problem.tile_tokens,
            "minBins": problem.min_bins,
            "greedy": problem.greedy,
        }

    def read_reply(self, message: dict[str, Any]) -> PackingReply:
        """Read and check a packing."""
        bins, fewest, smallest = message["binOf"], message["fewestProved"], message["smallestProved"]
        if not isinstance(bins, list) or not isinstance(fewest, bool) or not isinstance(smallest, bool):
            raise KeyError("a field of the agreed type")
        fault = find_packing_fault(self.problem, bins)
        if fault is not None:
            raise ValueError(fault)
        return PackingReply(tuple(bins), fewest, smallest)


def read_packing_problem(data: dict[str, Any]) -> PackingProblem:
    """Read what `PackingTask.to_json` gave."""
    return PackingProblem(
        tuple(data["lengths"]),
        tuple(data["adapters"]),
        data["tokenCapacity"],
        data["tileTokens"],
        data["minBins"],
        tuple(data["greedy"]),
    )
