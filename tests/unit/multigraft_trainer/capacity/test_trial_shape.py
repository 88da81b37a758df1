from __future__ import annotations

import pytest
import torch

from multigraft_trainer.backends.packed import check_packed
from multigraft_trainer.capacity.trial_shape import (
    Shape,
    build_even_shape,
    build_hardest_shape,
    build_trial_microbatch,
)


@pytest.mark.parametrize(
    "num_tokens, num_adapters, tile, longest, want",
    [
        pytest.param(1024, 1, 128, None, ((1024,),), id="one adapter, one sample"),
        pytest.param(1024, 3, 128, None, ((768,), (128,), (128,)), id="a tile for each other adapter"),
        pytest.param(1024, 3, 128, 500, ((500, 268), (128,), (128,)), id="samples no longer than the model takes"),
        pytest.param(256, 8, 128, None, ((128,), (128,)), id="more adapters than tiles"),
        pytest.param(128, 8, 128, None, ((128,),), id="one tile in all"),
        pytest.param(3, 2, 1, None, ((2,), (1,)), id="no tiles"),
    ],
)
def test_the_hardest_shape(num_tokens: int, num_adapters: int, tile: int, longest: int | None, want: Shape) -> None:
    got = build_hardest_shape(num_tokens, num_adapters=num_adapters, tile_tokens=tile, longest=longest)
    assert got == want
    assert sum(map(sum, got)) == num_tokens


@pytest.mark.parametrize(
    "num_tokens, num_adapters, sample, want",
    [
        pytest.param(1000, 2, 200, ((200, 200, 100), (200, 200, 100)), id="equal shares and a rest"),
        pytest.param(7, 3, 4, ((3,), (2,), (2,)), id="the first takes what does not divide"),
        pytest.param(2, 4, 4, ((2,),), id="fewer tokens than adapters"),
    ],
)
def test_an_even_shape(num_tokens: int, num_adapters: int, sample: int, want: Shape) -> None:
    assert build_even_shape(num_tokens, num_adapters=num_adapters, sample_tokens=sample) == want


def test_the_microbatch_is_whole_and_the_same_every_time() -> None:
    shape = build_hardest_shape(200, num_adapters=3, tile_tokens=16, longest=50)
    before = torch.random.get_rng_state()
    got, again = (build_trial_microbatch(shape, (4, 5, 6), vocab_size=64) for _ in range(2))
    check_packed(got, vocab_size=64)
    assert [segment.slot for segment in got.segments] == [4, 5, 6]
    assert len(got.input_ids) == 200
    assert sum(len(segment.target_ids) for segment in got.segments) == 200 - sum(map(len, shape))
    assert torch.equal(got.input_ids, again.input_ids)
    assert torch.equal(before, torch.random.get_rng_state())
