"""What a pool's microbatches may hold, where that number comes from, and the times that plans are compared by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from multigraft.api.base_model_pool import BaseModelPoolSpec
from multigraft.planner.cost import CostModel


class CapacitySource(StrEnum):
    """Where a token capacity comes from."""

    SPEC = "Spec"  # the pool says a number
    MEASURED = "Measured"  # Auto: by trial passes at this start
    CACHED = "Cached"  # Auto: by trial passes at an earlier start under the same circumstances
    ESTIMATED = "Estimated"  # Auto on a CPU: from free memory
    RESUMED = "Resumed"  # Auto: the one that the plans of the resumed run were made with


@dataclass(frozen=True)
class PoolCapacity:
    """The token capacity in use."""

    tokens: int
    source: CapacitySource
    detail: str = ""  # for people: how it was found, with numbers; empty for Spec
    cost: CostModel | None = None  # None: the planner's own

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens a microbatch" + (f": {self.detail}" if self.detail else "")


def read_given_capacity(spec: BaseModelPoolSpec) -> PoolCapacity | None:
    """Give the capacity that the pool says itself; None: Auto."""
    given = spec.batching.given_capacity
    return None if given is None else PoolCapacity(given, CapacitySource.SPEC)
