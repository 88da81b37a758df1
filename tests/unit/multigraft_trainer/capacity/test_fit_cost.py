from __future__ import annotations

import numpy as np
import pytest

from multigraft.planner.cost import CostModel
from multigraft_trainer.capacity.fit_cost import TimedSize, fit_cost
from multigraft_trainer.capacity.measure import list_timed_shapes

TRUTH = CostModel()


def make_sizes(truth: CostModel = TRUTH, *, tokens: int = 16_384, noise: float = 0.0) -> list[TimedSize]:
    """Time the shapes that are really timed, by a model."""
    rng = np.random.default_rng(0)
    sizes = []
    for shape in list_timed_shapes(tokens, num_adapters=4, longest_sample=None):
        lengths = np.array([length for adapter in shape for length in adapter], dtype=np.float64)
        count, pairs = lengths.sum(), np.square(lengths).sum()
        forward = truth.forward_fixed_ms + truth.forward_token_ms * count + truth.forward_pair_ms * pairs
        backward = truth.backward_fixed_ms + truth.backward_token_ms * count + truth.backward_pair_ms * pairs
        wobble = 1 + noise * rng.standard_normal(2)
        sizes.append(TimedSize(int(count), int(pairs), forward * wobble[0], backward * wobble[1]))
    return sizes


@pytest.mark.parametrize("tokens", [512, 2048, 16_384, 60_000])
def test_exact_times_give_the_model_back(tokens: int) -> None:
    got = fit_cost(make_sizes(tokens=tokens))
    for name in ("fixed", "token", "pair"):
        for direction in ("forward", "backward"):
            field = f"{direction}_{name}_ms"
            assert getattr(got.cost, field) == pytest.approx(getattr(TRUTH, field), rel=1e-6), field
    assert got.worst_error < 1e-9


def test_noise_of_two_percent_moves_the_fit_by_a_few_percent_of_each_time() -> None:
    got = fit_cost(make_sizes(noise=0.02))
    assert got.worst_error < 0.06
    clean = make_sizes()
    for size in clean:
        fitted = got.cost.forward_fixed_ms + got.cost.forward_token_ms * size.num_tokens
        fitted += got.cost.forward_pair_ms * size.num_pairs
        assert fitted == pytest.approx(size.forward_ms, rel=0.06)


@pytest.mark.parametrize(
    "sizes, wants_zero",
    [
        pytest.param([(100, 1000, 10.0), (200, 2000, 19.0), (400, 4000, 37.5)], "pair", id="pairs go with tokens"),
        pytest.param([(100, 50, 12.0), (200, 50, 22.1), (400, 50, 42.0)], "pair", id="pairs never change"),
        pytest.param([(100, 1, 10.0), (200, 1, 30.0), (400, 1, 70.0)], "fixed", id="a negative fixed part"),
        pytest.param([(100, 1, 5.0), (200, 2, 5.0), (400, 4, 5.0)], "token", id="nothing but a fixed part"),
    ],
)
def test_no_part_is_ever_negative(sizes: list[tuple[int, int, float]], wants_zero: str) -> None:
    timed = [TimedSize(tokens, pairs, ms, 2 * ms) for tokens, pairs, ms in sizes]
    cost = fit_cost(timed).cost
    parts = {name: getattr(cost, f"forward_{name}_ms") for name in ("fixed", "token", "pair")}
    assert all(value >= 0 for value in parts.values())
    assert parts[wants_zero] == pytest.approx(0, abs=1e-6)
    assert sum(parts.values()) > 0


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(make_sizes()[:2], id="two sizes"),
        pytest.param([*make_sizes()[:2], TimedSize(10, 100, 0.0, 1.0)], id="a time of nothing"),
    ],
)
def test_what_cannot_be_fitted_is_refused(sizes: list[TimedSize]) -> None:
    with pytest.raises(ValueError, match="want three or more with times above 0"):
        fit_cost(sizes)
