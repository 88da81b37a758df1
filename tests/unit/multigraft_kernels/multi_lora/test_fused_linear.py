"""The fused multi-adapter linear in Triton's CPU interpreter, against the reference: output and every gradient.

Small and in fp32 or fp16, since the interpreter gets bf16 wrong; the full grid and the Hopper GEMM run in tests/gpu.
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

from builders.fused_case import run_linear
from builders.lora_case import Adapter, LoraCase, assert_close, run_reference
from multigraft_kernels.counter_dropout.reference import build_multiplier
from multigraft_kernels.multi_lora.fused_linear import fused_multi_lora_linear
from multigraft_kernels.multi_lora.segments import LoraGrads, LoraSegment

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="the kernels are compiled here; tests/gpu runs them"
)

RELATIVE = {torch.float32: 4e-6, torch.float16: 2e-3}

MIXED = (
    Adapter(rank=1, scaling=0.5),
    Adapter(rank=3, scaling=1.0, dropout=0.3),
    Adapter(rank=8, scaling=2.0, dropout=0.05),
    Adapter(rank=20, scaling=64 / 20**0.5, dropout=0.6),
)


def make(adapters, order, **options) -> LoraCase:
    return LoraCase(adapters, order, **{"padding": float("nan"), **options})


def reference_of(adapters, order, **options):
    return run_reference(LoraCase(adapters, order, **options))


@pytest.mark.parametrize("dtype", list(RELATIVE), ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_mixed_ranks_scalings_and_dropouts(dtype: torch.dtype, bias: bool) -> None:
    order = [(0, 5), (1, 17), (-1, 3), (2, 1), (3, 140), (1, 2)]
    got = run_linear(make(MIXED, order, dtype=dtype, bias=bias), fused_multi_lora_linear)
    assert_close(got, reference_of(MIXED, order, dtype=dtype, bias=bias), RELATIVE[dtype])


@pytest.mark.parametrize("in_features, out_features", [(33, 7), (1, 1)])
def test_sides_that_are_no_multiples_of_a_tile(in_features: int, out_features: int) -> None:
    order = [(1, 30), (-1, 5), (0, 20)]
    sides = {"in_features": in_features, "out_features": out_features}
    assert_close(
        run_linear(make(MIXED[:2], order, **sides), fused_multi_lora_linear),
        reference_of(MIXED[:2], order, **sides),
        RELATIVE[torch.float32],
    )


@pytest.mark.parametrize("rank", [2, 12, 100])
def test_F01_F03_any_rank(rank: int) -> None:
    adapters = [Adapter(rank, 0.7, 0.2)]
    assert_close(
        run_linear(make(adapters, [(0, 20)]), fused_multi_lora_linear),
        reference_of(adapters, [(0, 20)]),
        RELATIVE[torch.float32],
    )


@pytest.mark.parametrize("num_tokens", [1, 15, 17, 129])
def test_F02_any_number_of_tokens(num_tokens: int) -> None:
    adapters, order = [Adapter(4, 2.0, 0.1)], [(0, num_tokens)]
    sides = {"in_features": 24, "out_features": 16}
    assert_close(
        run_linear(make(adapters, order, **sides), fused_multi_lora_linear),
        reference_of(adapters, order, **sides),
        RELATIVE[torch.float32],
    )


@pytest.mark.parametrize("order", [[], [(0, 0)], [(-1, 3)], [(0, 0), (-1, 3), (1, 0)]], ids=str)
def test_F06_nothing_to_do(order: list[tuple[int, int]]) -> None:
    case = make(MIXED, order)
    got = run_linear(case, fused_multi_lora_linear)
    assert torch.equal(got.y, F.linear(case.x, case.weight))
    assert not any(grad.any() for grad in [*got.da, *got.db])


def test_F06_rows_without_adapter_keep_the_bits_of_the_frozen_layer() -> None:
    case = make(MIXED, [(-1, 7), (0, 5), (-1, 11), (3, 0), (2, 4), (-1, 2)])
    got = run_linear(case, fused_multi_lora_linear)
    untouched = [*range(7), *range(12, 23), *range(27, 29)]
    assert torch.equal(got.y[untouched], F.linear(case.x, case.weight)[untouched])
    assert torch.equal(got.dx[untouched], (case.dy @ case.weight)[untouched])


def test_F08_nine_segments_in_nine_rows() -> None:
    adapters = [Adapter(1 + index % 5, 1.0, 0.1 * (index % 3)) for index in range(9)]
    order = [(index, 1) for index in range(9)]
    assert_close(
        run_linear(make(adapters, order), fused_multi_lora_linear),
        reference_of(adapters, order),
        RELATIVE[torch.float32],
    )


@pytest.mark.parametrize("dtype", list(RELATIVE), ids=str)
@pytest.mark.parametrize("dropout", [0.1, 0.9])
def test_F09_the_mask_is_that_of_the_plain_path_in_every_pass(dtype: torch.dtype, dropout: float) -> None:
    case = make([Adapter(32, 1.0, dropout)], [(0, 40)], in_features=32, out_features=32, dtype=dtype, first_position=5)
    case.weight.zero_()
    case.a[0] = case.b[0] = torch.eye(32)
    case.x.fill_(1.0)
    case.dy.fill_(1.0)
    got = run_linear(case, fused_multi_lora_linear)
    assert case.dropout is not None
    want = build_multiplier(*case.dropout, 32)
    assert torch.equal(got.y != 0, want != 0)
    assert torch.equal(got.dx != 0, want != 0)
    torch.testing.assert_close(got.da[0], want.sum(0).expand(32, -1), rtol=2e-3, atol=0)


def test_E05_segments_of_one_adapter_share_a_sink_and_keep_their_weights() -> None:
    case = make([Adapter(4, dropout=0.2), Adapter(6)], [(0, 10), (1, 7), (0, 64), (1, 1)])
    plain = run_linear(case, fused_multi_lora_linear, grad_weights=[1.0, 1.0, 0.0, 0.0])
    rest = run_linear(case, fused_multi_lora_linear, grad_weights=[0.0, 0.0, 0.5, 0.25])
    both = run_linear(case, fused_multi_lora_linear, grad_weights=[1.0, 1.0, 0.5, 0.25])
    for one, other, together in zip([*plain.da, *plain.db], [*rest.da, *rest.db], [*both.da, *both.db], strict=True):
        torch.testing.assert_close(one + other, together, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy, in the interpreter, on the neighbour's own NaN
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_neighbour_of_nan_and_inf_changes_no_bit(dropout: float) -> None:
    adapters = [Adapter(rank=4, dropout=dropout), Adapter(rank=6, dropout=dropout)]
    clean, broken = (make(adapters, [(0, 9), (1, 13), (0, 4)]) for _ in range(2))
    broken.x[9:22] = float("nan")
    broken.dy[9:22] = float("inf")
    broken.a[1], broken.b[1] = float("inf"), float("nan")
    got, want = run_linear(broken, fused_multi_lora_linear), run_linear(clean, fused_multi_lora_linear)
    rows = [*range(9), *range(22, 26)]
    assert torch.equal(got.y[rows], want.y[rows])
    assert torch.equal(got.dx[rows], want.dx[rows])
    assert torch.equal(got.da[0], want.da[0])
    assert torch.equal(got.db[0], want.db[0])


def test_alone_and_among_neighbours_the_gradients_of_a_and_b_have_the_same_bits() -> None:
    together = make(MIXED, [(0, 5), (1, 17), (2, 1), (3, 100), (0, 3)])
    alone = make(MIXED, [(3, 100)], first_position=23)
    rows = slice(23, 123)
    alone.x, alone.dy = together.x[rows], together.dy[rows]
    got, want = run_linear(together, fused_multi_lora_linear), run_linear(alone, fused_multi_lora_linear)
    assert torch.equal(got.da[3], want.da[3])
    assert torch.equal(got.db[3], want.db[3])


def test_sinks_may_lie_anywhere_and_keep_what_they_hold() -> None:
    case = make([Adapter(4, dropout=0.2)], [(0, 10)])
    want = run_linear(case, fused_multi_lora_linear)
    stack_a, stack_b = torch.full((3, 8, 48), 7.0), torch.full((3, 80, 8), 7.0)
    sink = LoraGrads(stack_a[1, :4], stack_b[2, :, :4])
    y = fused_multi_lora_linear(
        case.x, case.weight, None, case.a, case.b, case.segments, dropout=case.dropout, grads=[sink]
    )
    y.backward(case.dy)
    torch.testing.assert_close(sink.a, want.da[0] + 7.0)
    torch.testing.assert_close(sink.b, want.db[0] + 7.0)
    untouched = (stack_a[0], stack_a[1, 4:], stack_b[:2], stack_b[2, :, 4:])
    assert all(bool((part == 7.0).all()) for part in untouched)


def test_no_input_gradient_and_frozen_adapters() -> None:
    case = make(MIXED, [(1, 20), (-1, 3), (2, 9)])
    want = run_linear(case, fused_multi_lora_linear)
    got = run_linear(case, fused_multi_lora_linear, dx=False)
    assert all(torch.equal(one, other) for one, other in zip(got.da, want.da, strict=True))
    x = case.x.clone().requires_grad_(True)
    fused_multi_lora_linear(x, case.weight, None, case.a, case.b, case.segments, dropout=case.dropout).backward(case.dy)
    assert x.grad is not None
    assert torch.equal(x.grad, want.dx)


def test_refuses_a_sink_of_another_shape_or_number() -> None:
    case = make([Adapter(4)], [(0, 10)])
    bad = LoraGrads(torch.zeros(5, 48), torch.zeros(80, 4))
    y = fused_multi_lora_linear(case.x, case.weight, None, case.a, case.b, case.segments, grads=[bad])
    with pytest.raises(ValueError, match=r"sink a of .* want float32 of rank 4"):
        y.backward(case.dy)
    with pytest.raises(ValueError, match="got 0 for 1 segments"):
        fused_multi_lora_linear(case.x, case.weight, None, case.a, case.b, case.segments, grads=[])


def test_refuses_segments_that_do_not_fit() -> None:
    case = make([Adapter(4)], [(0, 10)])
    with pytest.raises(ValueError, match="want 0 <= start <= end <= 10"):
        fused_multi_lora_linear(case.x, case.weight, None, case.a, case.b, [LoraSegment(0, 0, 11, 4, 1.0)])
