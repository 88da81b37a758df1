"""Pack samples into the fewest microbatches, then make the smallest as small as can be: two mixed-integer programmes.

    stage one    minimize    sum_b used[b]
    stage two    minimize    sum_a tiles[a, last]                               with the number of bins of stage one

    subject to   sum_b assign[s, b] = 1                                         every sample is placed once
                 sum_{s in a} tokens[s] assign[s, b] <= tile tiles[a, b]        an adapter fills whole tiles
                 sum_a tiles[a, b] <= capacity_tiles used[b]                    the microbatch fits
                 used[b] >= used[b + 1]                                         bins are used from the first on
                 assign[s, b] = 0 for b > s                                     symmetry: bins are numbered by their
                                                                                longest sample, samples longest first

Stage one is offered one bin less than greedy needed: it finds a better packing or proves that there is none. Bins below
the area bound are used in any packing. Stage two needs no choice of the smallest bin: bins may be renamed, so it is the
last one, which the symmetry rule leaves out.

Source: LoRAFusion's two-stage micro-MILP (arXiv:2510.00206, section 4.3), with tiles counted per adapter in place of
big-M terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulp

from multigraft.planner.packing_problem import PackingProblem, count_tiles


@dataclass(frozen=True)
class Formulation:
    """A programme and its assignment variables: one dictionary (bin -> variable) per sample of the problem."""

    programme: pulp.LpProblem
    assign: list[dict[int, pulp.LpVariable]]

    def read_bins(self) -> list[int]:
        """Read the bin of each sample from a solved programme: the one of largest value, -1 where none has any."""
        return [_largest({b: variable.varValue or 0.0 for b, variable in row.items()}) for row in self.assign]


def build_fewest_bins(problem: PackingProblem, num_bins: int) -> Formulation:
    """Build stage one: the fewest of `num_bins` bins."""
    programme = pulp.LpProblem("fewest_bins", pulp.LpMinimize)
    used = {b: programme.add_variable(f"used_{b}", cat="Binary") for b in range(problem.min_bins, num_bins)}
    programme += pulp.lpSum(used.values())
    order = _longest_first(problem)
    choices = {s: range(min(place + 1, num_bins)) for place, s in enumerate(order)}
    formulation = _build_packing(programme, problem, choices, num_bins, used)
    for b in range(problem.min_bins, num_bins - 1):
        programme += used[b] >= used[b + 1]  # bins are used from the first on
    for place, s in enumerate(order):
        if 2 * problem.lengths[s] > problem.token_capacity and place < num_bins:
            programme += formulation.assign[s][place] == 1  # two of these never share a bin
    return formulation


def build_smallest_bin(problem: PackingProblem, start: Sequence[int]) -> Formulation:
    """Build stage two on the bins of the packing `start` (numbered from 0 without gaps), which is the warm start."""
    num_bins = max(start) + 1
    programme = pulp.LpProblem("smallest_bin", pulp.LpMinimize)
    order = _longest_first(problem)
    last = num_bins - 1
    choices = {s: [*range(min(place + 1, last)), last] for place, s in enumerate(order)}
    formulation = _build_packing(programme, problem, choices, num_bins, {})
    programme += pulp.lpSum(v for v in programme.variables() if v.name.endswith(f"_in_{last}"))
    for s, b in enumerate(renumber(problem, start)):
        for other, variable in formulation.assign[s].items():
            variable.setInitialValue(1 if other == b else 0)
    return formulation


def renumber(problem: PackingProblem, bin_of: Sequence[int]) -> list[int]:
    """Number the bins of a packing as stage two does: the one of fewest tiles last, the others by longest sample."""
    tiles = count_tiles(problem, bin_of)
    smallest = min(tiles, key=lambda b: (tiles[b], b))
    ranked = [bin_of[s] for s in _longest_first(problem) if bin_of[s] != smallest]
    new = {b: number for number, b in enumerate(dict.fromkeys(ranked))}
    return [new.get(b, len(new)) for b in bin_of]


def _build_packing(
    programme: pulp.LpProblem,
    problem: PackingProblem,
    choices: Mapping[int, Sequence[int]],
    num_bins: int,
    used: dict[int, pulp.LpVariable],
) -> Formulation:
    assign = [
        {b: programme.add_variable(f"assign_{s}_{b}", cat="Binary") for b in choices[s]} for s in range(len(choices))
    ]
    for row in assign:
        programme += pulp.lpSum(row.values()) == 1  # every sample is placed once
    for b in range(num_bins):
        tiles = []
        for adapter in sorted(set(problem.adapters)):
            inside = [s for s, a in enumerate(problem.adapters) if a == adapter and b in assign[s]]
            if not inside:
                continue
            count = programme.add_variable(f"tiles_{adapter}_in_{b}", 0, problem.capacity_tiles, cat="Integer")
            tokens = pulp.LpAffineExpression([(assign[s][b], problem.lengths[s]) for s in inside])
            programme += tokens <= problem.tile_tokens * count  # an adapter fills whole tiles
            tiles.append(count)
        room = problem.capacity_tiles * used[b] if b in used else problem.capacity_tiles
        programme += pulp.lpSum(tiles) <= room  # the microbatch fits
    return Formulation(programme, assign)


def _longest_first(problem: PackingProblem) -> list[int]:
    return sorted(range(len(problem.lengths)), key=lambda s: (-problem.lengths[s], s))


def _largest(values: dict[int, float]) -> int:
    b = max(values, key=lambda key: values[key])
    return b if values[b] > 0 else -1
