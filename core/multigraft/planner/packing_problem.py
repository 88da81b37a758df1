"""A packing problem as a solver gets it, and what a solver says of it. Plain data; no solver is imported here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class SolverName(StrEnum):
    """Solvers that PuLP may drive."""

    HIGHS = "HiGHS"
    CBC = "CBC"


@dataclass(frozen=True)
class PackingReply:
    """What a solver process says of one problem."""

    bin_of: tuple[int, ...]
    fewest_proved: bool  # it says that no packing has fewer bins
    smallest_proved: bool  # and that with this number of bins no smallest bin is smaller


@dataclass(frozen=True)
class PackingProblem:
    """Samples of at most one step of each of several adapters, and a packing of them that is already known."""

    lengths: tuple[int, ...]  # tokens of each sample
    adapters: tuple[int, ...]  # adapter of each sample
    token_capacity: int
    tile_tokens: int
    min_bins: int  # no packing has fewer
    greedy: tuple[int, ...]  # bin of each sample, bins numbered from 0 without gaps

    @property
    def capacity_tiles(self) -> int:
        """Tiles of one microbatch."""
        return self.token_capacity // self.tile_tokens

    @property
    def min_tiles(self) -> int:
        """Tiles that all samples need if every adapter shared all of its tiles."""
        tokens: dict[int, int] = defaultdict(int)
        for length, adapter in zip(self.lengths, self.adapters, strict=True):
            tokens[adapter] += length
        return sum(-(-total // self.tile_tokens) for total in tokens.values())


def count_tiles(problem: PackingProblem, bin_of: Sequence[int]) -> dict[int, int]:
    """Count the tiles of each bin that a packing uses."""
    tokens: dict[tuple[int, int], int] = defaultdict(int)
    for length, adapter, b in zip(problem.lengths, problem.adapters, bin_of, strict=True):
        tokens[b, adapter] += length
    tiles: dict[int, int] = defaultdict(int)
    for (b, _), total in tokens.items():
        tiles[b] += -(-total // problem.tile_tokens)
    return dict(tiles)


def is_smallest_at_bound(problem: PackingProblem, bin_of: Sequence[int]) -> bool:
    """Say whether the smallest bin is as small as the total of tiles allows with this number of bins."""
    tiles = count_tiles(problem, bin_of)
    least = min(-(-length // problem.tile_tokens) for length in problem.lengths)
    return min(tiles.values()) <= max(least, problem.min_tiles - (len(tiles) - 1) * problem.capacity_tiles)
