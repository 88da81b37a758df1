"""The Triton dropout on a real GPU: the bits of the CPU form, for every dtype."""

from __future__ import annotations

import pytest
import torch

from builders.dropout_case import make_rows, make_table
from multigraft_kernels.counter_dropout import add_dropped, drop

CUDA = torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("num_tokens, num_features", [(1, 1), (7, 80), (300, 1030), (1000, 4096), (65, 14336)])
def test_equals_the_cpu_bit_by_bit(dtype: torch.dtype, num_tokens: int, num_features: int) -> None:
    adapters = [(token // 5) % 4 - 1 for token in range(num_tokens)]  # runs of 5 rows: -1, 0, 1, 2
    rows, table = make_rows(adapters, draw=-3, step=2**30), make_table([0.1, 0.0, 0.5])
    x, start = torch.randn(2, num_tokens, num_features).to(dtype)
    touched = rows.adapter >= 0
    got = drop(x.to(CUDA), rows.to(CUDA), table.to(CUDA)).cpu()
    assert torch.equal(got[touched], drop(x, rows, table)[touched])
    want, out = start.clone(), start.to(CUDA)
    add_dropped(want, x, rows, table)
    add_dropped(out, x.to(CUDA), rows.to(CUDA), table.to(CUDA))
    assert torch.equal(out.cpu(), want)


def test_rows_left_alone_are_not_written() -> None:
    rows, table = make_rows([0, -1, 1, 0]).to(CUDA), make_table([0.5, 0.5]).to(CUDA)
    table.thresholds[1] = -1
    out = torch.full((4, 64), 5.0, device=CUDA, dtype=torch.bfloat16)
    add_dropped(out, torch.full_like(out, float("nan")), rows, table)
    assert torch.equal(out[1:3].cpu(), torch.full((2, 64), 5.0, dtype=torch.bfloat16))


def test_F06_no_launch_for_zero_tokens() -> None:
    assert drop(torch.empty(0, 16, device=CUDA), make_rows([]).to(CUDA), make_table([0.5]).to(CUDA)).shape == (0, 16)


def test_offsets_past_two_to_the_31() -> None:
    num_tokens, num_features = 40_000, 65_536  # 2.6e9 elements
    rows, table = make_rows([0] * num_tokens).to(CUDA), make_table([0.5]).to(CUDA)
    x = torch.ones(num_tokens, num_features, device=CUDA, dtype=torch.bfloat16)
    got = drop(x, rows, table)[-4:].cpu()
    last = make_rows([0] * 4, first_position=num_tokens - 4)
    assert torch.equal(got, drop(torch.ones(4, num_features, dtype=torch.bfloat16), last, make_table([0.5])))
