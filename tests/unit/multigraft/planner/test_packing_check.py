from __future__ import annotations

import pytest

from builders.packing_problems import make_problem
from multigraft.planner.packing_check import find_packing_fault

PROBLEM = make_problem([30, 20, 10, 5], [0, 1, 0, 1], capacity=64, tile=16)


def test_a_good_packing_has_no_fault() -> None:
    assert find_packing_fault(PROBLEM, list(PROBLEM.greedy)) is None
    assert find_packing_fault(PROBLEM, [3, 1, 1, 3]) is None


@pytest.mark.parametrize(
    "bin_of, words",
    [
        ([0, 0, 1], "3 bins for 4 samples"),
        ([0, 0, 1, -1], "sample 3 has bin -1"),
        ([0, 0, 1, 99], "sample 3 has bin 99"),
        ([0, 0, 1, 0.0], "sample 3 has bin 0.0"),
        ([0, 0, 1, True], "sample 3 has bin True"),
        ([0, 0, 1, None], "sample 3 has bin None"),
        ([0, 0, 1, "x" * 10_000], "sample 3 has bin 'xxx"),
        ([0, 0, 0, 0], "bin 0 holds 80 tokens in whole tiles, the capacity is 64"),
        ([0, 1, 2, 3], "4 bins, greedy has 2"),
    ],
)
def test_faults_are_named_in_a_few_words(bin_of: list[object], words: str) -> None:
    fault = find_packing_fault(PROBLEM, bin_of)
    assert fault is not None
    assert fault.startswith(words)
    assert len(fault) < 200
