"""Tensor descriptors (TMA) of what the Hopper kernels read and write."""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.int32: gl.int32}


def describe(tensor: torch.Tensor, block: list[int]) -> Any:
    """Describe tiles of `block` elements; what lies outside the tensor reads as zero and is not written."""
    layout = gl.NVMMASharedLayout.get_default_for(block, _DTYPES[tensor.dtype])
    return TensorDescriptor.from_tensor(tensor, block, layout)


def describe_words(x: torch.Tensor, block: list[int]) -> Any:
    """Describe tiles of x [T, K] of a 16-bit dtype as words of two features; `block` counts words."""
    return describe(x.view(torch.int32), block)


@gluon.jit  # type: ignore[untyped-decorator]
def clear_rows(tile, rows, BLOCK_T: gl.constexpr, BLOCK_C: gl.constexpr):  # type: ignore[no-untyped-def]
    """Set the rows from `rows` on of a tile in shared memory to zero; whoever calls fences before wgmma reads it."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    inside = gl.expand_dims(gl.arange(0, BLOCK_T, gl.SliceLayout(1, layout)) < rows, 1)
    values = tile.load(layout)
    tile.store(gl.where(inside, values, gl.zeros([BLOCK_T, BLOCK_C], values.dtype, layout)))
