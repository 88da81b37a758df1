"""Measure the token capacity of a shared base and its cost model, before any job is on it."""

from __future__ import annotations

from dataclasses import dataclass

from multigraft.api.reasons import Reason, RefusalError
from multigraft.planner.cost import CostModel
from multigraft_trainer.capacity.fit_cost import fit_cost
from multigraft_trainer.capacity.size_search import SearchRange, find_largest, keep_margin
from multigraft_trainer.capacity.trial_shape import Shape, build_even_shape
from multigraft_trainer.capacity.trials import Trials

MARGIN = 0.05
"""Share of the largest size that is not used: other lengths and adapters leave other gaps in the allocator's memory."""
UNIT_TOKENS = 128  # rows of a GEMM's tile: a part of one costs as much as a whole
FIRST_TOKENS = 1024
MOST_TOKENS = 65_536
"""Nothing is gained beyond: the fixed part of an 8B model's microbatch (28 ms) is 1 % of its time by then, and offsets
into the activations of a layer 28,672 wide stay below 2^31."""

TIMED_MOST_TOKENS = 16_384  # times are linear by then; larger ones would only take longer to take
TIMED_ADAPTERS = 4
SHORT_SAMPLE = 512


@dataclass(frozen=True)
class Measured:
    """What the trials gave."""

    tokens: int  # the capacity, whole units
    largest_fit: int  # the largest size that ran
    cost: CostModel
    cost_error: float  # worst relative distance of the cost model from a timed size
    num_passes: int


def measure_capacity(trials: Trials, *, max_slots: int, tile_tokens: int, longest_sample: int | None) -> Measured:
    """Search the largest size, keep the margin, and time a few smaller ones.

    Raises:
        RefusalError: OUT_OF_MEMORY, if not even the smallest size fits.
    """
    unit = choose_unit(tile_tokens)
    within = SearchRange(first=_round_up(FIRST_TOKENS, unit), most=_round_up(MOST_TOKENS, unit), unit=unit)
    largest = find_largest(trials.fits, within)
    if largest is None:
        raise RefusalError(
            Reason.OUT_OF_MEMORY,
            f"spec.batching.maxTokensPerMicrobatch: not even {unit} tokens fit beside the base model and {max_slots} "
            f"adapters; lower slots.max or slots.maxRank, or set gradientCheckpointing ({trials.last_refusal})",
        )
    tokens = keep_margin(largest, unit, MARGIN)
    shapes = list_timed_shapes(tokens, num_adapters=min(max_slots, TIMED_ADAPTERS), longest_sample=longest_sample)
    fitted = fit_cost([trials.time(shape) for shape in shapes])
    return Measured(tokens, largest, fitted.cost, fitted.worst_error, trials.num_passes)


def choose_unit(tile_tokens: int) -> int:
    """Choose the step in which sizes are tried: whole tiles of at least `UNIT_TOKENS` together."""
    return _round_up(UNIT_TOKENS, tile_tokens)


def list_timed_shapes(tokens: int, *, num_adapters: int, longest_sample: int | None) -> list[Shape]:
    """List shapes that tell fixed, token and pair time apart: three sizes in short samples, two in long ones."""
    top = min(tokens, TIMED_MOST_TOKENS)
    longest = longest_sample or top
    short = min(SHORT_SAMPLE, max(1, min(top, longest) // 16))
    sizes = [top, max(2, top // 2), max(2, top // 4)]
    shapes = [build_even_shape(size, num_adapters=num_adapters, sample_tokens=short) for size in sizes]
    return shapes + [build_even_shape(size, num_adapters=1, sample_tokens=min(size, longest)) for size in sizes[:2]]


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
