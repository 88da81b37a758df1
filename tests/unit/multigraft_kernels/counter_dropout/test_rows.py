"""Quantised probabilities: which are honoured and which are refused."""

from __future__ import annotations

import pytest

from multigraft_kernels.counter_dropout.rows import build_scale, build_threshold


@pytest.mark.parametrize(
    "p, want", [(0.0, 0), (0.05, 3277), (0.1, 6554), (0.5, 32768), (1 / 65536, 1), (0.9999, 65529)]
)
def test_threshold_is_the_nearest_lane_count(p: float, want: int) -> None:
    assert build_threshold(p) == want


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan"), float("inf"), 0.999999, 1e-6])
def test_refuses_what_cannot_be_honoured(p: float) -> None:
    with pytest.raises(ValueError, match=f"dropout: got {p}"):
        build_threshold(p)


def test_scale_keeps_the_expectation_exactly() -> None:
    for threshold in (1, 3277, 32768, 65535):
        assert build_scale(threshold) * (65536 - threshold) / 65536 == pytest.approx(1, rel=1e-15)
    assert build_scale(0) == build_scale(-1) == 1.0
