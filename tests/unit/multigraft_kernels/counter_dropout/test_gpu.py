"""The Triton kernel in Triton's CPU interpreter: the same bits as the CPU form (bf16 only on a GPU: tests/gpu)."""

from __future__ import annotations

import os

import pytest
import torch

from builders.dropout_case import make_rows, make_table
from multigraft_kernels.counter_dropout import gpu
from multigraft_kernels.counter_dropout.cpu import add_dropped_rows, drop_rows

ADAPTERS = [0] * 10 + [1] * 5 + [-1] * 2 + [0] * 4


pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="the kernel is compiled here; tests/gpu runs it"
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("num_features", [1, 80, 1030])
def test_equals_the_cpu_form_bit_by_bit(dtype: torch.dtype, num_features: int) -> None:
    rows, table = make_rows(ADAPTERS, draw=-7), make_table([0.3, 0.0])
    x = torch.randn(len(ADAPTERS), num_features).to(dtype)
    got, want = torch.full((2, *x.shape), 7.0, dtype=dtype)
    gpu.launch(x, rows, table, got, add=False)
    drop_rows(x, rows, table, want)
    assert torch.equal(got, want)
    gpu.launch(x, rows, table, got, add=True)
    add_dropped_rows(want, x, rows, table)
    assert torch.equal(got, want)


def test_F06_no_launch_for_zero_tokens() -> None:
    empty = torch.empty(0, 16)
    gpu.launch(empty, make_rows([]), make_table([0.5]), empty, add=False)
