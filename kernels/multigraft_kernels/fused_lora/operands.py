"""What every launch of the fused kernels needs to know about its tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from multigraft_kernels.counter_dropout.rows import DropoutRows, DropoutTable

_TRITON_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

Dropout = tuple[DropoutRows, DropoutTable]


def triton_dtype(dtype: torch.dtype) -> tl.dtype:
    """Give Triton's name of a compute dtype.

    Raises:
        ValueError: If the kernels do not compute in it.
    """
    if dtype not in _TRITON_DTYPES:
        raise ValueError(f"dtype: got {dtype}, allowed are {sorted(map(str, _TRITON_DTYPES))}")
    return _TRITON_DTYPES[dtype]


def rank_columns(max_rank: int) -> int:
    """Give the columns R of s and ds: the largest rank in whole sixteens, so that rows are loaded by 16 bytes."""
    return -(-max_rank // 16) * 16


def rank_block(max_rank: int, min_block: int) -> int:
    """Give the block that holds every rank; at least `min_block`, a matrix unit's least tile."""
    return max(min_block, int(triton.next_power_of_2(max_rank)))


def stack_is_aligned(stack: torch.Tensor) -> bool:
    """Say whether rank columns of a stack [slots, N, maxRank] may be read in whole sixteens past an adapter's rank."""
    return stack.shape[2] % 16 == 0


def dot_precision(dtype: torch.dtype) -> str:
    """Give the input precision of `tl.dot`: fp32 is multiplied as fp32; for 16-bit dtypes it means nothing."""
    return "ieee" if dtype == torch.float32 else "tf32"


def dropout_arguments(dropout: Dropout | None, filler: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Give adapter, position, draw, step, keys, thresholds, scales; without dropout `filler`, which is not read."""
    if dropout is None:
        return (filler,) * 7
    rows, table = dropout
    return rows.adapter, rows.position, rows.draw, rows.step, table.keys, table.thresholds, table.scales


@dataclass(frozen=True)
class FeatureRows:
    """x [T, K] as the kernels read it: by words of two features where dtype, K and strides allow it."""

    data: torch.Tensor
    stride: int
    by_pairs: bool


def feature_rows(x: torch.Tensor) -> FeatureRows:
    """View x for `keep_mask.load_kept`; the features of a row must be contiguous."""
    by_pairs = x.element_size() == 2 and x.shape[1] % 2 == 0 and x.stride(0) % 2 == 0 and x.storage_offset() % 2 == 0
    data = x.view(torch.int32) if by_pairs else x
    return FeatureRows(data, data.stride(0), by_pairs)


def uses_ptx(x: torch.Tensor) -> bool:
    """Say whether the kernels may use PTX: on NVIDIA GPUs, not in Triton's interpreter."""
    return x.is_cuda and torch.version.cuda is not None and not triton.knobs.runtime.interpret


@contextlib.contextmanager
def on_device_of(x: torch.Tensor) -> Iterator[None]:
    """Make x's GPU the current one, on which Triton launches."""
    if x.is_cuda:
        with torch.cuda.device(x.device):
            yield
    else:
        yield
