"""Check a packing that a solver gave back; independent of how it was found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from multigraft.planner.packing_problem import PackingProblem


def find_packing_fault(problem: PackingProblem, bin_of: Sequence[object]) -> str | None:
    """Say what is wrong with a packing; None if every sample has a bin, bins fit, and greedy is not better.

    Args:
        problem: What had to be packed.
        bin_of: What the solver says; anything that JSON can hold.
    """
    if len(bin_of) != len(problem.lengths):
        return f"{len(bin_of)} bins for {len(problem.lengths)} samples"
    tokens: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for sample, b in enumerate(bin_of):
        if type(b) is not int or not 0 <= b < len(problem.lengths):
            return f"sample {sample} has bin {b!r:.40}"
        tokens[b][problem.adapters[sample]] += problem.lengths[sample]
    for b, adapters in tokens.items():
        load = sum(total + -total % problem.tile_tokens for total in adapters.values())
        if load > problem.token_capacity:
            return f"bin {b} holds {load} tokens in whole tiles, the capacity is {problem.token_capacity}"
    if len(tokens) > len(set(problem.greedy)):
        return f"{len(tokens)} bins, greedy has {len(set(problem.greedy))}"
    return None
