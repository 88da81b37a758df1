"""The CPU form against the definition: the same bits for any shape, dtype and order of rows."""

from __future__ import annotations

import pytest
import torch

from builders.dropout_case import make_rows, make_table
from multigraft_kernels.counter_dropout import DropoutRows, add_dropped, drop, drop_and_add
from multigraft_kernels.counter_dropout.reference import build_multiplier

ADAPTERS = [0] * 5 + [1] * 3 + [-1] * 2 + [2] * 4 + [0] * 3 + [3]


def _touched(rows: DropoutRows) -> torch.Tensor:
    return rows.adapter >= 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_features", [1, 7, 8, 80, 1030, 70_001])
def test_equals_the_definition_bit_by_bit(dtype: torch.dtype, num_features: int) -> None:
    rows, table = make_rows(ADAPTERS), make_table([0.05, 0.0, 0.3, 0.9])
    x = torch.randn(len(ADAPTERS), num_features).to(dtype)
    want = (x.float() * build_multiplier(rows, table, num_features)).to(dtype)
    got = drop(x, rows, table)
    assert torch.equal(got[_touched(rows)], want[_touched(rows)])


def test_adding_is_the_gradient_of_dropping() -> None:
    rows, table = make_rows(ADAPTERS), make_table([0.05, 0.0, 0.3, 0.9])
    x, grad, start = torch.randn(3, len(ADAPTERS), 72)
    got = start.clone()
    add_dropped(got, grad, rows, table)
    want = start + grad * build_multiplier(rows, table, 72)
    assert torch.equal(got, torch.where(_touched(rows)[:, None], want, start))
    both = start.clone()
    dropped = drop_and_add(x, grad, both, rows, table)
    assert torch.equal(both, got)
    assert torch.equal(dropped[_touched(rows)], drop(x, rows, table)[_touched(rows)])


def test_dropped_features_are_zero_even_where_x_is_not_finite() -> None:
    rows, table = make_rows([0] * 64), make_table([0.5])
    got = drop(torch.full((64, 64), float("nan")), rows, table)
    assert 0.4 < (got == 0).float().mean() < 0.6
    assert torch.isnan(got[got != 0]).all()


def test_rows_without_adapter_are_not_touched() -> None:
    rows, table = make_rows([-1, 0, -1]), make_table([0.5])
    out = torch.full((3, 16), 5.0)
    add_dropped(out, torch.full((3, 16), float("nan")), rows, table)
    assert torch.equal(out[[0, 2]], torch.full((2, 16), 5.0))


@pytest.mark.parametrize("p", [0.05, 0.1, 0.3, 0.5])
def test_share_and_mean_are_those_of_p(p: float) -> None:
    rows, table = make_rows([0] * 512), make_table([p])
    got = drop(torch.ones(512, 1024), rows, table)
    # 5 standard deviations of a binomial share over 524,288 features
    assert abs((got == 0).float().mean().item() - p) < 5 * (p * (1 - p) / 524_288) ** 0.5 + 1 / 65_536
    assert got.mean().item() == pytest.approx(1, abs=5 * (p / (1 - p) / 524_288) ** 0.5 + 1e-3)


@pytest.mark.parametrize(
    "other",
    [{"draw": 8}, {"step": 4}, {"first_position": 1}, {"draw": -1}],
    ids=["draw", "step", "position", "sign bit"],
)
def test_each_counter_changes_the_mask(other: dict[str, int]) -> None:
    x, table = torch.ones(32, 256), make_table([0.5])
    assert not torch.equal(drop(x, make_rows([0] * 32), table), drop(x, make_rows([0] * 32, **other), table))


def test_mask_does_not_depend_on_neighbours_or_place() -> None:
    alone = drop(torch.ones(4, 96), make_rows([0] * 4), make_table([0.3]))
    together = drop(torch.ones(9, 96), make_rows([1] * 5 + [0] * 4, first_position=-5), make_table([0.3, 0.1]))
    assert torch.equal(alone, together[5:])


def test_layers_and_seeds_have_masks_of_their_own() -> None:
    x, rows = torch.ones(8, 128), make_rows([0] * 8)
    masks = [drop(x, rows, make_table([0.5], layer=layer, seeds=[seed])) for layer in "ab" for seed in (1, 2)]
    assert all(not torch.equal(one, other) for i, one in enumerate(masks) for other in masks[:i])


def test_nothing_in_nothing_out() -> None:
    assert drop(torch.empty(0, 8), make_rows([]), make_table([0.5])).shape == (0, 8)


def test_refuses_shapes_that_do_not_fit() -> None:
    rows, table = make_rows([0] * 4), make_table([0.5])
    with pytest.raises(ValueError, match=r"shape \(3, 8\), want \[4, features\]"):
        drop(torch.ones(3, 8), rows, table)
    with pytest.raises(ValueError, match="must be contiguous"):
        drop(torch.ones(8, 4).T, rows, table)
