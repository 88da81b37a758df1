"""Copies of A and B that the base GEMM can multiply whole tiles with.

Shapes   A [slots, maxRank, K] -> ready [G, R, K];  B [slots, N, maxRank] -> ready [G, N, R];  G adapters with rows
         flags [G, ceil(outputs / FACTOR_COLUMNS)] int32, outputs = K for A, N for B
Dtypes   as A and B
Why      beyond an adapter's rank the stacks hold anything, in the copies zeros. And a tile may hold rows of two
         adapters, whose rows of S are zero for the other's factor; 0 x NaN would still be NaN, so what is not finite
         becomes zero in the copy, and its flag says that the adapter's own rows must become NaN in those columns.
Cost     G R K elements read and written: 0.2 to 5 MB, made by programs beside those of another kernel
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

FACTOR_COLUMNS = 256  # outputs per flag and per program: the width of a base GEMM tile
READY_RANKS = 16  # ranks that a program copies at a time


@dataclass(frozen=True)
class ReadyFactor:
    """A or B of the G adapters of a microbatch, without padding and finite."""

    factors: torch.Tensor  # [G, R, K] or [G, N, R]
    flags: torch.Tensor  # [G, ceil(outputs / FACTOR_COLUMNS)] int32, 1 where something was not finite


def make_ready_a(num_adapters: int, R: int, K: int, like: torch.Tensor) -> ReadyFactor:
    """Make room for A, [G, R, K]."""
    return ReadyFactor(like.new_empty(num_adapters, R, K), _make_flags(num_adapters, K, like))


def make_ready_b(num_adapters: int, R: int, N: int, like: torch.Tensor) -> ReadyFactor:
    """Make room for B, [G, N, R]."""
    return ReadyFactor(like.new_empty(num_adapters, N, R), _make_flags(num_adapters, N, like))


def _make_flags(num_adapters: int, num_outputs: int, like: torch.Tensor) -> torch.Tensor:
    blocks = -(-num_outputs // FACTOR_COLUMNS)
    return torch.empty(num_adapters, blocks, dtype=torch.int32, device=like.device)


@triton.jit  # type: ignore[untyped-decorator]
def write_ready(  # type: ignore[no-untyped-def]
    p_factor,
    p_ready,
    flag_ptr,
    rank,
    num_outputs,
    i_block,
    stride_out,
    stride_rank,
    stride_ready_out,
    stride_ready_rank,
    R,
    BLOCK_R: tl.constexpr,
    RANK_ALIGNED: tl.constexpr,
    FACTOR_COLUMNS: tl.constexpr,
):
    """Copy one adapter's factor for FACTOR_COLUMNS outputs, and write their flag.

    RANK_ALIGNED says that ranks up to the next multiple of 16 may be read (whatever they hold).
    """
    o_o = i_block * FACTOR_COLUMNS + tl.arange(0, FACTOR_COLUMNS)
    m_o = o_o < num_outputs
    readable = (rank + 15) // 16 * 16 if RANK_ALIGNED else rank
    bad = tl.zeros((), tl.int32)
    for r in range(0, R, BLOCK_R):
        o_r = r + tl.arange(0, BLOCK_R)
        p_from = p_factor + o_r.to(tl.int64)[:, None] * stride_rank + o_o.to(tl.int64)[None, :] * stride_out
        factor = tl.load(p_from, mask=(o_r < readable)[:, None] & m_o[None, :], other=0.0)
        factor = tl.where((o_r < rank)[:, None], factor, 0.0)
        finite = tl.abs(factor.to(tl.float32)) < float("inf")
        bad = tl.maximum(bad, tl.max(tl.max(tl.where(finite, 0, 1), axis=1), axis=0))
        p_to = p_ready + o_r.to(tl.int64)[:, None] * stride_ready_rank + o_o.to(tl.int64)[None, :] * stride_ready_out
        tl.store(p_to, tl.where(finite, factor, 0.0), mask=(o_r < R)[:, None] & m_o[None, :])
    tl.store(flag_ptr, bad)
