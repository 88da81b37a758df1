"""Fit the planner's linear cost model to a few timed microbatches.

    minimize    sum_i ((fixed + token tokens_i + pair pairs_i - ms_i) / ms_i)^2    relative: short ones count too
    subject to  fixed, token, pair >= 0

With three unknowns the constraint is solved by trying which of them are zero (seven ways) and taking the best.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from multigraft.planner.cost import CostModel

Coefficients = tuple[float, float, float]  # fixed_ms, token_ms, pair_ms


@dataclass(frozen=True)
class TimedSize:
    """How long one microbatch took, the whole model."""

    num_tokens: int  # padded to tiles
    num_pairs: int  # sum over samples of tokens squared
    forward_ms: float
    backward_ms: float


@dataclass(frozen=True)
class FittedCost:
    """A cost model and how far it is from what was timed."""

    cost: CostModel
    worst_error: float  # largest |fitted - timed| / timed over the sizes, forward and backward together


def fit_cost(sizes: Sequence[TimedSize]) -> FittedCost:
    """Fit both passes.

    Raises:
        ValueError: If there are fewer than three sizes, or a time is not above 0.
    """
    if len(sizes) < 3 or any(size.forward_ms <= 0 or size.backward_ms <= 0 for size in sizes):
        raise ValueError(f"sizes: got {sizes}, want three or more with times above 0")
    terms = np.array([[1.0, size.num_tokens, size.num_pairs] for size in sizes])
    forward = np.array([size.forward_ms for size in sizes])
    backward = np.array([size.backward_ms for size in sizes])
    first, second = _fit_terms(terms, forward), _fit_terms(terms, backward)
    error = np.abs(terms @ np.add(first, second) - (forward + backward)) / (forward + backward)
    return FittedCost(CostModel(*first, *second), float(error.max()))


def _fit_terms(terms: NDArray[np.float64], times_ms: NDArray[np.float64]) -> Coefficients:
    weighted, target = terms / times_ms[:, None], np.ones(len(times_ms))
    best: tuple[float, Coefficients] | None = None
    for count in (1, 2, 3):
        for used in itertools.combinations(range(3), count):
            scale = np.abs(weighted[:, used]).max(axis=0)  # 1 and 1e9 in one matrix would lose half the digits
            found = np.linalg.lstsq(weighted[:, used] / scale, target, rcond=None)[0] / scale
            if (found < 0).any():
                continue
            full = np.zeros(3)
            full[list(used)] = found
            error = float(np.square(weighted @ full - target).sum())
            if best is None or error < best[0] - 1e-12:
                best = error, (float(full[0]), float(full[1]), float(full[2]))
    assert best is not None, "one positive column alone always fits positive times"  # noqa: S101
    return best[1]
