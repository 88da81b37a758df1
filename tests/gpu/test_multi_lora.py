"""The plain-torch multi-adapter linear on a GPU against the float64 reference."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from builders.lora_case import Adapter, LoraCase, assert_close, run_reference, run_segmented

# ||got - want|| / ||want||: 8 bits of mantissa and two roundings on the low-rank path in bf16
RELATIVE = {torch.float32: 2e-6, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}
ADAPTERS = (
    Adapter(rank=1, scaling=0.5),
    Adapter(rank=3, scaling=1.0, dropout=0.1),
    Adapter(rank=8, scaling=2.0, dropout=0.5),
    Adapter(rank=20, scaling=4.0),
    Adapter(rank=64, scaling=0.25, dropout=0.1),
)
ORDERS = {
    "one token": [(1, 1)],
    "a b a b": [(1, 1), (2, 7), (1, 64), (2, 1)],
    "all, ragged": [(0, 63), (1, 1000), (-1, 17), (2, 1), (3, 130), (4, 0), (0, 15), (4, 333)],
}


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("in_features, out_features, bias", [(48, 80, True), (2880, 1000, False), (520, 264, True)])
@pytest.mark.parametrize("dtype", list(RELATIVE), ids=str)
def test_equals_the_reference(dtype: torch.dtype, in_features: int, out_features: int, bias: bool, order: str) -> None:
    case = LoraCase(
        ADAPTERS,
        ORDERS[order],
        in_features=in_features,
        out_features=out_features,
        bias=bias,
        dtype=dtype,
        device="cuda",
        padding=float("nan"),
    )
    clean = LoraCase(
        ADAPTERS,
        ORDERS[order],
        in_features=in_features,
        out_features=out_features,
        bias=bias,
        dtype=dtype,
        device="cuda",
    )
    assert_close(run_segmented(case), run_reference(clean), RELATIVE[dtype])


def test_F06_rows_without_adapter_keep_the_bits_of_the_frozen_layer() -> None:
    case = LoraCase(ADAPTERS, [(-1, 70), (1, 50), (-1, 30)], in_features=256, dtype=torch.bfloat16, device="cuda")
    got = run_segmented(case)
    base = F.linear(case.x, case.weight)
    untouched = [*range(70), *range(120, 150)]
    assert torch.equal(got.y[untouched], base[untouched])


def test_a_neighbour_of_nan_and_inf_changes_no_bit() -> None:
    adapters = [Adapter(rank=4, dropout=0.1), Adapter(rank=6, dropout=0.1)]
    cases = [
        LoraCase(adapters, [(0, 90), (1, 130), (0, 40)], in_features=128, dtype=torch.bfloat16, device="cuda")
        for _ in range(2)
    ]
    broken = cases[1]
    broken.x[90:220], broken.dy[90:220] = float("nan"), float("inf")
    broken.a[1], broken.b[1] = float("inf"), float("nan")
    want, got = (run_segmented(case) for case in cases)
    rows = [*range(90), *range(220, 260)]
    assert torch.equal(got.y[rows], want.y[rows])
    assert torch.equal(got.dx[rows], want.dx[rows])
    assert torch.equal(got.da[0], want.da[0])
    assert torch.equal(got.db[0], want.db[0])
