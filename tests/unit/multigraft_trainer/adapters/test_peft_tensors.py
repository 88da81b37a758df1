from __future__ import annotations

import math

import pytest
import torch

from builders.small_adapter import TINY_LINEARS
from multigraft_trainer.adapters.peft_tensors import (
    build_key,
    build_shapes,
    describe_mismatch,
    find_nonfinite,
    list_some,
)

NAME = "model.layers.0.mlp.down_proj"
A, B = (f"base_model.model.{NAME}.lora_{factor}.weight" for factor in "AB")


def test_B21_keys_and_shapes_are_pefts() -> None:
    assert (build_key(NAME, "A"), build_key(NAME, "B")) == (A, B)
    assert build_shapes(3, [NAME], TINY_LINEARS) == {A: (3, 144), B: (64, 3)}


@pytest.mark.parametrize(
    "got, want",
    [
        pytest.param({A: (3, 144), B: (64, 3)}, "", id="equal"),
        pytest.param({B: (64, 3), A: (3, 144)}, "", id="another order"),
        pytest.param({A: (3, 144)}, f"missing {B}", id="one is missing"),
        pytest.param({A: (3, 144), B: (64, 3), "x": (1,)}, "not expected x", id="one too many"),
        pytest.param({A: (144, 3), B: (64, 3)}, f"{A} has shape [144, 3], want [3, 144]", id="a shape differs"),
        pytest.param({"x": (1,)}, f"missing {A}, {B}; not expected x", id="nothing fits"),
    ],
)
def test_a_mismatch_is_named(got: dict[str, tuple[int, ...]], want: str) -> None:
    assert describe_mismatch(got, build_shapes(3, [NAME], TINY_LINEARS)) == want


def test_long_lists_are_cut_and_counted() -> None:
    assert list_some(["a", "b"]) == "a, b"
    assert list_some([str(n) for n in range(8)]) == "0, 1, 2, 3, 4 and 3 more"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_B19_the_first_tensor_that_is_not_finite_is_named(bad: float, dtype: torch.dtype) -> None:
    good = torch.ones(3, dtype=dtype)

    assert find_nonfinite({"a": good, "b": torch.tensor([1.0, bad], dtype=dtype)}) == "b"
    assert find_nonfinite({"a": good}) is None
