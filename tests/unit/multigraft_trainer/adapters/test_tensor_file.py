from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from multigraft_trainer.adapters.tensor_file import TensorHeader, read_headers, read_tensors

TENSORS = {"a": torch.ones(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16), "c": torch.ones(1, dtype=torch.int64)}


def test_headers_say_shape_and_dtype(tmp_path: Path) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "x")

    want = {"a": TensorHeader((2, 3), "F32"), "b": TensorHeader((4,), "BF16"), "c": TensorHeader((1,), "I64")}
    assert read_headers(tmp_path / "x") == want


def test_only_the_named_tensors_are_read(tmp_path: Path) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "x")

    got = read_tensors(tmp_path / "x", ["b"])

    assert got.keys() == {"b"}
    assert torch.equal(got["b"], TENSORS["b"])


@pytest.mark.parametrize("data", [b"", b"\x00" * 8, b"\xff" * 8, b"\x80\x04]", b"\x02" + b"\x00" * 7 + b"[]"])
def test_any_other_bytes_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)

    with pytest.raises(ValueError, match="x: is no whole safetensors file"):
        read_headers(tmp_path / "x")


def test_a_tensor_that_is_not_there_is_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "x")

    with pytest.raises(ValueError, match="is no whole safetensors file"):
        read_tensors(tmp_path / "x", ["nothing"])
