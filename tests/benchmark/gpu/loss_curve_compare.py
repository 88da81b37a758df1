"""How far loss curves lie apart, against how far PEFT's own lie apart under two seeds. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

TAIL_SHARE = 0.25  # of the steps: where a drift would have grown


@dataclass(frozen=True)
class CurveSet:
    """Losses by step of one job in each of the runs, nats per supervised token."""

    job: str
    shared: list[float]
    solo: list[float]
    peft: list[float]
    peft_other_seed: list[float]


@dataclass(frozen=True)
class Comparison:
    """Root mean squares over the steps of differences between curves, in nats, and what they come to."""

    job: str
    spread: float  # PEFT against PEFT under the other seed: the measure
    shared_solo: float
    shared_peft: float
    shared_solo_share: float  # of the spread
    shared_peft_share: float
    tail_shift: float  # mean of shared - PEFT over the last quarter, nats; a drift has a sign
    tail_shift_other_seed: float  # the same of PEFT under the other seed
    final_loss: float  # mean of shared over the last quarter
    is_within: bool  # both shares at most 1

    def to_json(self) -> dict[str, Any]:
        """Give the comparison as JSON data, six digits."""
        return {key: round(value, 6) if isinstance(value, float) else value for key, value in asdict(self).items()}


def compare_curves(curves: CurveSet) -> Comparison:
    """Compare the curves of one job.

    Raises:
        ValueError: If lengths differ, a loss is not finite, or the two seeds gave the same curve.
    """
    shared, solo, peft, other = (
        np.asarray(values, dtype=np.float64)
        for values in (curves.shared, curves.solo, curves.peft, curves.peft_other_seed)
    )
    if len({len(values) for values in (shared, solo, peft, other)}) != 1:
        raise ValueError(f"{curves.job}: curves of {len(shared)}, {len(solo)}, {len(peft)}, {len(other)} steps")
    if not all(np.isfinite(values).all() for values in (shared, solo, peft, other)):
        raise ValueError(f"{curves.job}: a loss is not finite")
    spread = _distance(peft, other)
    if spread == 0:
        raise ValueError(f"{curves.job}: PEFT gave the same curve under both seeds")
    tail = slice(len(shared) - max(1, int(len(shared) * TAIL_SHARE)), None)
    to_solo, to_peft = _distance(shared, solo), _distance(shared, peft)
    return Comparison(
        job=curves.job,
        spread=spread,
        shared_solo=to_solo,
        shared_peft=to_peft,
        shared_solo_share=to_solo / spread,
        shared_peft_share=to_peft / spread,
        tail_shift=float((shared - peft)[tail].mean()),
        tail_shift_other_seed=float((other - peft)[tail].mean()),
        final_loss=float(shared[tail].mean()),
        is_within=max(to_solo, to_peft) <= spread,
    )


def _distance(one: np.ndarray[Any, np.dtype[np.float64]], other: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    return float(np.sqrt(np.square(one - other).mean()))
