"""Parts of the fused kernels that the linear's own tests do not reach on a CPU, in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

from builders.dropout_case import make_rows, make_table
from multigraft_kernels.counter_dropout.reference import build_multiplier
from multigraft_kernels.fused_lora import portable_grad_output, portable_input, portable_shrink
from multigraft_kernels.fused_lora.ready_factor import FACTOR_COLUMNS, make_ready_a, make_ready_b
from multigraft_kernels.fused_lora.reduce_parts import reduce_rows
from multigraft_kernels.launch.choices import ShrinkLaunch
from multigraft_kernels.multi_lora.fused.routes import TILE_ROWS, build_routes
from multigraft_kernels.multi_lora.segments import LoraSegment

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="the kernels are compiled here; tests/gpu runs them"
)

# Two segments of adapters of ranks 3 and 20 in one tile of rows, as the interpreter and a GPU cut them
SEGMENTS = [LoraSegment(1, 2, 9, 3, 2.0), LoraSegment(0, 9, 30, 20, 0.5)]


def make_stacks(K: int, N: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fill what lies beyond the ranks with NaN."""
    a, b = torch.randn(2, 20, K), torch.randn(2, N, 20)
    a[1, 3:], b[1, :, 3:] = float("nan"), float("nan")
    return a, b


@interpreted
def test_s_by_pairs_and_b_made_ready_beside_it() -> None:
    K, N = 40, 300
    a, b = make_stacks(K, N)
    b[0, 299, 7] = float("inf")
    x = torch.randn(30, K)
    dropout = make_rows([-1] * 2 + [0] * 7 + [1] * 21), make_table([0.3, 0.0])
    routes = build_routes(SEGMENTS, 30, x.device)
    ready = make_ready_b(2, 32, N, x)
    launch = ShrinkLaunch(block_t=32, block_k=32, min_block_r=16)
    s = portable_shrink.shrink(x, a, b, routes, dropout, launch, ready=ready)
    dropped = x * build_multiplier(*dropout, K)
    want = torch.zeros(2 * TILE_ROWS, 32)
    want[2:9, :3] = 2.0 * dropped[2:9] @ a[1, :3].T
    want[TILE_ROWS + 9 : TILE_ROWS + 30, :20] = 0.5 * dropped[9:30] @ a[0].T
    torch.testing.assert_close(s, want, rtol=1e-4, atol=1e-5)
    want_ready = torch.zeros(2, N, 32)
    want_ready[0, :, :3], want_ready[1, :, :20] = b[1, :, :3], b[0]
    want_ready[1, 299, 7] = 0.0
    assert torch.equal(ready.factors, want_ready)
    assert ready.flags.tolist() == [[0, 0], [0, 1]]
    assert ready.flags.shape[1] == -(-N // FACTOR_COLUMNS)


@interpreted
@pytest.mark.filterwarnings("ignore:invalid value")  # numpy, on the infinite A
def test_s_is_zero_in_a_neighbours_rows_even_where_a_is_infinite() -> None:
    a, b = torch.full((2, 20, 40), float("inf")), torch.zeros(2, 8, 20)
    routes = build_routes(SEGMENTS, 30, a.device)
    launch = ShrinkLaunch(block_t=32, block_k=32, min_block_r=16)
    s = portable_shrink.shrink(torch.randn(30, 40), a, b, routes, None, launch)
    outside = [*range(2), *range(9, TILE_ROWS + 9), *range(TILE_ROWS + 30, 2 * TILE_ROWS)]
    assert not s[outside].any()


@interpreted
def test_parts_are_added_scaled_and_cut_and_a_made_ready_beside_it() -> None:
    K = 40
    a, _ = make_stacks(K, 8)
    a[0, 5, 11] = float("nan")
    parts = torch.full((11, 2 * TILE_ROWS, 32), float("nan"))
    parts[:, 2:9, :16] = torch.randn(11, 7, 16)
    parts[:, TILE_ROWS + 9 : TILE_ROWS + 30] = torch.randn(11, 21, 32)
    dropout = make_rows([-1] * 2 + [0] * 7 + [1] * 21), make_table([0.3, 0.0])
    routes = build_routes(SEGMENTS, 30, parts.device)
    ready = make_ready_a(2, 32, K, a)
    got = reduce_rows(parts, a, routes, dropout, outputs_last=True, ready=ready)
    want = torch.zeros(2 * TILE_ROWS, 32)
    want[2:9, :3] = 2.0 * dropout[1].scales[0] * parts[:, 2:9, :3].sum(0)
    want[TILE_ROWS + 9 : TILE_ROWS + 30, :20] = 0.5 * parts[:, TILE_ROWS + 9 : TILE_ROWS + 30, :20].sum(0)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    want_ready = torch.zeros(2, 32, K)
    want_ready[0, :3], want_ready[1, :20] = a[1, :3], a[0]
    want_ready[1, 5, 11] = 0.0
    assert torch.equal(ready.factors, want_ready)
    assert ready.flags.tolist() == [[0], [1]]


@pytest.mark.parametrize(
    "cost, gigaflop, megabytes, us",
    [
        (portable_shrink.estimate_cost(8192, 4096, 64, 2), 4.3, 69, 16),
        (portable_grad_output.estimate_cost(8192, 4096, 64, 2, 4096, 8192), 8.6, 72, 17),
        (portable_input.estimate_cost(8192, 4096, 64, 2, 8192, dropout=True), 4.3, 73, 17),
    ],
    ids=["shrink", "grad_output", "input"],
)
def test_costs_are_those_of_the_headers(cost, gigaflop: float, megabytes: float, us: float) -> None:
    assert cost.flops / 1e9 == pytest.approx(gigaflop, rel=0.02)
    assert cost.num_bytes / 1e6 == pytest.approx(megabytes, rel=0.02)
    assert cost.floor_us(teraflops=790, gigabytes_per_second=4300) == pytest.approx(us, rel=0.04)
