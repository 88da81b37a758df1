"""Find the largest size that fits by doubling and bisecting. Pure: whether a size fits, the caller knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PRECISION_SHARE = 1 / 32  # the search ends once what is not known is this share of what fits: five more trials at most


@dataclass(frozen=True)
class SearchRange:
    """Which sizes are tried, in tokens; all of them whole multiples of `unit`."""

    first: int
    most: int
    unit: int

    def __post_init__(self) -> None:
        if not 1 <= self.unit <= self.first <= self.most or self.first % self.unit or self.most % self.unit:
            text = f"unit {self.unit}, first {self.first}, most {self.most}"
            raise ValueError(f"search range: got {text}, want 1 <= unit <= first <= most, both whole units")


def find_largest(fits: Callable[[int], bool], within: SearchRange) -> int | None:
    """Give the largest size that was seen to fit, to a unit or 1/32 of itself; None if not even one unit fits.

    Sizes grow from `first` by doubling until one does not fit or `most` does. `fits` is asked once per size, and no
    size above one that did not fit is tried.
    """
    good, bad = _grow(fits, within)
    while bad is not None and bad - good > max(within.unit, good * PRECISION_SHARE):
        middle = (good + bad) // 2 // within.unit * within.unit
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good or None


def _grow(fits: Callable[[int], bool], within: SearchRange) -> tuple[int, int | None]:
    """Give the largest size seen to fit (0: none yet) and the smallest seen not to (None: there is none)."""
    good, size = 0, within.first
    while fits(size):
        if size == within.most:
            return size, None
        good, size = size, min(2 * size, within.most)
    return good, size


def keep_margin(largest: int, unit: int, margin: float) -> int:
    """Take the share `margin` off the largest size, to whole units; at least one unit stays."""
    return max(unit, int(largest * (1 - margin)) // unit * unit)
