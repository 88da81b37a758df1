"""The plain-torch multi-adapter linear against the reference: output and every gradient."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from builders.lora_case import Adapter, LoraCase, assert_close, run_reference, run_segmented
from multigraft_kernels.multi_lora.segmented import multi_lora_linear
from multigraft_kernels.multi_lora.segments import LoraGrads, LoraSegment

# ||got - want|| / ||want|| against float64; fp32 products of up to 80 terms round to about 2e-7
RELATIVE = {torch.float32: 2e-6, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}

MIXED = (
    Adapter(rank=1, scaling=0.5),
    Adapter(rank=3, scaling=1.0, dropout=0.3),
    Adapter(rank=8, scaling=2.0, dropout=0.05),
    Adapter(rank=20, scaling=64 / 20**0.5),
)
MIXED_ORDER = [(0, 5), (1, 17), (-1, 3), (2, 1), (3, 40)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", list(RELATIVE), ids=str)
def test_mixed_ranks_scalings_and_dropouts(dtype: torch.dtype, bias: bool) -> None:
    case = LoraCase(MIXED, MIXED_ORDER, bias=bias, dtype=dtype)
    assert_close(run_segmented(case), run_reference(case), RELATIVE[dtype])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_E05_order_a_b_a_b(dropout: float) -> None:
    adapters = [Adapter(rank=4, dropout=dropout), Adapter(rank=6, scaling=0.7)]
    case = LoraCase(adapters, [(0, 1), (1, 7), (0, 64), (1, 1)])
    assert_close(run_segmented(case), run_reference(case), RELATIVE[torch.float32])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 33])
def test_E06_any_number_of_adapters_with_unequal_ranks(count: int) -> None:
    adapters = [
        Adapter(rank=1 + 5 * index % 23, scaling=0.5 + index, dropout=0.1 * (index % 3)) for index in range(count)
    ]
    case = LoraCase(adapters, [(index, 1 + index % 9) for index in range(count)])
    assert_close(run_segmented(case), run_reference(case), RELATIVE[torch.float32])


def test_E08_each_adapter_has_its_own_rank_and_alpha() -> None:
    adapters = [Adapter(4, 8 / 4), Adapter(16, 16 / 16, dropout=0.1), Adapter(12, 1 / 12)]
    case = LoraCase(adapters, [(0, 9), (1, 9), (2, 9)])
    assert_close(run_segmented(case), run_reference(case), RELATIVE[torch.float32])


def test_F06_rows_without_adapter_keep_the_bits_of_the_frozen_layer() -> None:
    case = LoraCase(MIXED, [(-1, 7), (0, 5), (-1, 11), (3, 0), (2, 4), (-1, 2)])
    got = run_segmented(case)
    base = F.linear(case.x, case.weight)
    untouched = [*range(7), *range(12, 23), *range(27, 29)]
    assert torch.equal(got.y[untouched], base[untouched])
    assert torch.equal(got.dx[untouched], (case.dy @ case.weight)[untouched])
    assert not got.da[3].any()
    assert not got.db[3].any()


@pytest.mark.parametrize("order", [[], [(0, 0)], [(-1, 3)], [(0, 0), (-1, 3), (1, 0)]], ids=str)
def test_F06_nothing_to_do(order: list[tuple[int, int]]) -> None:
    case = LoraCase(MIXED, order)
    got = run_segmented(case)
    assert torch.equal(got.y, F.linear(case.x, case.weight))
    assert not any(grad.any() for grad in [*got.da, *got.db])


def test_F09_dropout_reaches_the_input_gradient() -> None:
    case = LoraCase([Adapter(rank=8, dropout=0.5)], [(0, 50)])
    assert_close(run_segmented(case), run_reference(case), RELATIVE[torch.float32])
    low_rank_dx = run_segmented(case).dx - case.dy @ case.weight
    assert 0.4 < (low_rank_dx == 0).float().mean() < 0.6  # dropped features take no gradient


@pytest.mark.parametrize("alpha, want", [(16.0, 2.0), (1.0, 0.125), (0.5, 0.0625)])
def test_B10_update_is_scaled_by_alpha_over_rank(alpha: float, want: float) -> None:
    case = LoraCase([Adapter(rank=8, scaling=alpha / 8)], [(0, 6)])
    got = run_segmented(case).y - F.linear(case.x, case.weight)
    update = case.x @ case.a[0].T @ case.b[0].T
    torch.testing.assert_close(got, want * update, rtol=1e-4, atol=1e-5)


def test_B21_shapes_of_a_and_b() -> None:
    got = run_segmented(LoraCase([Adapter(rank=8)], [(0, 5)], in_features=48, out_features=80))
    assert got.da[0].shape == (8, 48)
    assert got.db[0].shape == (80, 8)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_neighbour_of_nan_and_inf_changes_no_bit(dropout: float) -> None:
    adapters = [Adapter(rank=4, dropout=dropout), Adapter(rank=6, dropout=dropout)]
    clean = LoraCase(adapters, [(0, 9), (1, 13), (0, 4)])
    broken = LoraCase(adapters, [(0, 9), (1, 13), (0, 4)])
    broken.x[9:22] = float("nan")
    broken.dy[9:22] = float("inf")
    broken.a[1], broken.b[1] = float("inf"), float("nan")
    got, want = run_segmented(broken), run_segmented(clean)
    rows = [*range(9), *range(22, 26)]
    assert torch.equal(got.y[rows], want.y[rows])
    assert torch.equal(got.dx[rows], want.dx[rows])
    assert torch.equal(got.da[0], want.da[0])
    assert torch.equal(got.db[0], want.db[0])


def test_slot_and_padding_do_not_matter() -> None:
    plain = run_segmented(LoraCase(MIXED, MIXED_ORDER))
    moved = run_segmented(LoraCase(MIXED, MIXED_ORDER, slots=[6, 0, 3, 2], padding=float("nan")))
    assert_close(moved, plain, 0.0)


def test_neighbours_change_an_adapter_by_rounding_only() -> None:
    together = LoraCase(MIXED, MIXED_ORDER)
    alone = LoraCase(MIXED, [(1, 17)], first_position=5)
    rows = slice(5, 22)
    alone.x, alone.dy = together.x[rows], together.dy[rows]
    got, want = run_segmented(together), run_segmented(alone)
    torch.testing.assert_close(got.y[rows], want.y, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.dx[rows], want.dx, rtol=1e-5, atol=1e-6)
    assert torch.equal(got.da[1], want.da[1])
    assert torch.equal(got.db[1], want.db[1])


def test_gradients_are_weighted_in_the_sink_and_added_to_what_is_there() -> None:
    case = LoraCase([Adapter(4), Adapter(4)], [(0, 5), (1, 5), (0, 5)])
    weights = [0.25, 1 / 3, 0.25]
    plain, weighted = run_segmented(case), run_segmented(case, grad_weights=weights)
    torch.testing.assert_close(weighted.da[0], 0.25 * plain.da[0])
    torch.testing.assert_close(weighted.db[1], plain.db[1] / 3)
    assert torch.equal(weighted.dx, plain.dx)


def test_no_input_gradient_where_none_is_wanted() -> None:
    case = LoraCase(MIXED, MIXED_ORDER)
    got, want = run_segmented(case, dx=False), run_reference(case)
    assert_close(dataclasses.replace(got, dx=want.dx), want, RELATIVE[torch.float32])


def test_frozen_adapters_pass_the_gradient_on() -> None:
    case = LoraCase(MIXED, MIXED_ORDER)
    x = case.x.clone().requires_grad_(True)
    y = multi_lora_linear(x, case.weight, None, case.a, case.b, case.segments, dropout=case.dropout)
    y.backward(case.dy)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, run_reference(case).dx.float(), rtol=1e-4, atol=1e-5)


def test_C13_under_checkpointing_without_any_input_gradient() -> None:
    case = LoraCase(MIXED, MIXED_ORDER)

    def run(*, checkpointed: bool) -> list[torch.Tensor]:
        sinks = [LoraGrads(torch.zeros(a.rank, 48), torch.zeros(80, a.rank)) for a in MIXED]

        def layer(x: torch.Tensor) -> torch.Tensor:
            y = multi_lora_linear(
                x, case.weight, None, case.a, case.b, case.segments, dropout=case.dropout, grads=sinks
            )
            return torch.sin(y)

        y = checkpoint(layer, case.x, use_reentrant=False) if checkpointed else layer(case.x)
        y.sum().backward()
        return [grad for sink in sinks for grad in (sink.a, sink.b)]

    got, want = run(checkpointed=True), run(checkpointed=False)
    assert all(grad.abs().max() > 0 for grad in got)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


@pytest.mark.parametrize(
    "segment, message",
    [
        (LoraSegment(0, 3, 2, 4, 1.0), "want 0 <= start <= end <= 10"),
        (LoraSegment(0, 0, 11, 4, 1.0), "want 0 <= start <= end <= 10"),
        (LoraSegment(1, 0, 5, 4, 1.0), r"slot must be in \[0, 1\)"),
        (LoraSegment(-1, 0, 5, 4, 1.0), r"slot must be in \[0, 1\)"),
        (LoraSegment(0, 0, 5, 5, 1.0), r"rank must be in \[1, 4\]"),
        (LoraSegment(0, 0, 5, 0, 1.0), r"rank must be in \[1, 4\]"),
    ],
)
def test_refuses_segments_that_do_not_fit(segment: LoraSegment, message: str) -> None:
    case = LoraCase([Adapter(rank=4)], [(0, 10)])
    with pytest.raises(ValueError, match=message):
        multi_lora_linear(case.x, case.weight, None, case.a, case.b, [segment])


def test_refuses_overlap_and_missing_sinks() -> None:
    case = LoraCase([Adapter(rank=4)], [(0, 10)])
    overlap = [LoraSegment(0, 0, 6, 4, 1.0), LoraSegment(0, 5, 10, 4, 1.0)]
    with pytest.raises(ValueError, match="want 6 <= start"):
        multi_lora_linear(case.x, case.weight, None, case.a, case.b, overlap)
    with pytest.raises(ValueError, match="got 0 for 1 segments"):
        multi_lora_linear(case.x, case.weight, None, case.a, case.b, case.segments, grads=[])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_E05_any_list_of_segments(data: st.DataObject) -> None:
    adapters = data.draw(
        st.lists(
            st.builds(
                Adapter,
                rank=st.integers(1, 9),
                scaling=st.floats(0.1, 4),
                dropout=st.sampled_from([0.0, 0.05, 0.5]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    order = data.draw(st.lists(st.tuples(st.integers(-1, len(adapters) - 1), st.integers(0, 12)), max_size=9))
    case = LoraCase(adapters, order, in_features=24, out_features=16, padding=float("nan"))
    unpadded = LoraCase(adapters, order, in_features=24, out_features=16)
    assert_close(run_segmented(case), run_reference(unpadded), 1e-5)
