from __future__ import annotations

import pytest

from multigraft_trainer.capacity.size_search import SearchRange, find_largest, keep_margin

WITHIN = SearchRange(first=1024, most=65_536, unit=128)


class Memory:
    """Takes sizes up to a limit, and remembers what it was asked."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.asked: list[int] = []

    def fits(self, size: int) -> bool:
        self.asked.append(size)
        return size <= self.limit


@pytest.mark.parametrize(
    "limit, least, most",
    [
        pytest.param(10**9, 65_536, 65_536, id="all fit: the range's end is taken"),
        pytest.param(65_536, 65_536, 65_536, id="the range's end fits exactly"),
        pytest.param(65_535, 63_488, 65_408, id="the range's end does not fit"),
        pytest.param(1024, 1024, 1024, id="the first size fits exactly"),
        pytest.param(1023, 896, 896, id="the first size does not fit, seven units do"),
        pytest.param(128, 128, 128, id="one unit alone fits"),
        pytest.param(20_000, 19_200, 19_968, id="a size between two doublings"),
        pytest.param(2047, 1920, 1920, id="just below a doubling"),
    ],
)
def test_the_largest_size_is_found_to_a_unit_or_a_thirtysecond(limit: int, least: int, most: int) -> None:
    memory = Memory(limit)
    got = find_largest(memory.fits, WITHIN)
    assert got is not None
    assert least <= got <= most
    assert got <= limit
    assert got % WITHIN.unit == 0
    assert got in memory.asked, "what is given was seen to fit"


def test_nothing_fits() -> None:
    memory = Memory(127)
    assert find_largest(memory.fits, WITHIN) is None
    assert 128 in memory.asked, "the smallest size was tried"


@pytest.mark.parametrize("limit", range(0, 70_000, 701))
def test_the_search_is_short_and_never_goes_above_a_failure(limit: int) -> None:
    memory = Memory(limit)
    find_largest(memory.fits, WITHIN)
    assert len(memory.asked) == len(set(memory.asked)), "no size is tried twice"
    assert len(memory.asked) <= 13  # 1024 to 65,536 are seven doublings, then at most five halvings and one for 1/32
    smallest_failure: int | None = None
    for size in memory.asked:
        assert smallest_failure is None or size < smallest_failure
        if size > limit:
            smallest_failure = size


def test_memory_that_wavers_gives_a_size_that_was_seen_to_fit() -> None:
    answers = {1024: True, 2048: True, 4096: False, 3072: False, 2560: True, 2816: True, 2944: False}
    assert find_largest(lambda size: answers[size], WITHIN) == 2816


@pytest.mark.parametrize(
    "first, most, unit",
    [
        pytest.param(1024, 512, 128, id="end before the beginning"),
        pytest.param(1000, 2048, 128, id="first is no whole units"),
        pytest.param(1024, 2000, 128, id="end is no whole units"),
        pytest.param(0, 128, 128, id="first is nothing"),
        pytest.param(1024, 2048, 0, id="no unit"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(first: int, most: int, unit: int) -> None:
    with pytest.raises(ValueError, match=f"unit {unit}, first {first}, most {most}, want 1 <= unit"):
        SearchRange(first=first, most=most, unit=unit)


@pytest.mark.parametrize(
    "largest, unit, want",
    [
        pytest.param(20_480, 128, 19_456, id="twentieth part, whole units"),
        pytest.param(1000, 128, 896, id="rounded down"),
        pytest.param(128, 128, 128, id="one unit stays"),
        pytest.param(65_536, 384, 62_208, id="a unit that is no power of two"),
    ],
)
def test_the_margin_is_kept_in_whole_units(largest: int, unit: int, want: int) -> None:
    assert keep_margin(largest, unit, 0.05) == want
