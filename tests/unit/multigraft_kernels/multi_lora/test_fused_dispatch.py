"""Which form a layer gets: the plain one with a reason wherever the fused one is not known to run and agree."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from builders.fused_case import run_linear
from builders.lora_case import Adapter, LoraCase, assert_close, run_reference
from multigraft_kernels.multi_lora import dispatch
from multigraft_kernels.multi_lora.dispatch import choose_path, find_disagreement, multi_lora_linear
from multigraft_kernels.multi_lora.segmented import multi_lora_linear as plain

CPU = torch.device("cpu")


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the CPU is a Hopper GPU on which the fused form agrees."""
    monkeypatch.setattr(dispatch, "_object_to_device", lambda _device: None)
    monkeypatch.setattr(dispatch, "_probe", lambda _device, _dtype: None)


def tensors(K: int = 64, N: int = 96, max_rank: int = 8, dtype: torch.dtype = torch.bfloat16, **changes: torch.Tensor):
    layer = {
        "x": torch.zeros(3, K, dtype=dtype),
        "weight": torch.zeros(N, K, dtype=dtype),
        "a": torch.zeros(1, max_rank, K, dtype=dtype),
        "b": torch.zeros(1, N, max_rank, dtype=dtype),
    }
    return {**layer, **changes}


def test_a_cpu_gets_the_plain_form_and_the_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    dispatch._log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger=dispatch.__name__):
        choices = [choose_path(**tensors()) for _ in range(3)]
    assert {choice.fused for choice in choices} == {False}
    assert choices[0].reason == "device: cpu has no fused kernels"
    assert len(caplog.records) == 1
    assert "plain form: device: cpu has no fused kernels" in caplog.text


def test_F14_dropout_and_bias_do_not_take_the_fused_form_away(hopper: None) -> None:
    assert choose_path(**tensors()).fused


@pytest.mark.parametrize(
    "changes, want",
    [
        ({"dtype": torch.float32}, "dtype: torch.float32 has no fused GEMM"),
        ({"b": torch.zeros(1, 96, 8)}, "dtype: x is torch.bfloat16, the weights are torch.float32"),
        ({"K": 72, "N": 100}, "shape: in 72, out 100"),
        ({"K": 60}, "shape: in 60, out 96"),
        ({"max_rank": 264}, "rank: the slots are 264 wide, the fused kernels go to 256"),
        ({"weight": torch.zeros(64, 96, dtype=torch.bfloat16).t()}, "shape: the weight has strides (1, 96)"),
    ],
)
def test_F12_F14_each_obstacle_has_its_reason(hopper: None, changes: dict[str, object], want: str) -> None:
    choice = choose_path(**tensors(**changes))
    assert not choice.fused
    assert choice.reason.startswith(want)


def test_F16_a_form_that_does_not_compile_is_not_taken() -> None:
    def fail() -> None:
        raise RuntimeError("ptxas died\nwith a long report")

    assert find_disagreement(CPU, torch.float32, fail) == "probe: RuntimeError: ptxas died"


def test_a_form_that_gives_other_numbers_is_not_taken() -> None:
    def doubled(*arguments: object, **options: object) -> torch.Tensor:
        return plain(*arguments, **options) * 1.05

    assert find_disagreement(CPU, torch.float32, lambda: plain) is None
    assert str(find_disagreement(CPU, torch.float32, lambda: doubled)).startswith("probe: y differs")


def test_the_probe_works_without_grad_mode_and_inside_a_checkpointed_layer() -> None:
    with torch.no_grad():
        assert find_disagreement(CPU, torch.float32, lambda: plain) is None

    def layer(x: torch.Tensor) -> torch.Tensor:
        assert find_disagreement(CPU, torch.float32, lambda: plain) is None
        return torch.sin(x)

    x = torch.ones(3, requires_grad=True)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, torch.cos(torch.ones(3)))


def test_nothing_of_triton_is_imported_before_it_is_used() -> None:
    program = "import sys; sys.modules['triton'] = None; import multigraft_kernels.multi_lora.dispatch"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_dispatcher_gives_what_the_reference_gives() -> None:
    case = LoraCase([Adapter(4, 2.0, 0.3), Adapter(7)], [(0, 9), (-1, 2), (1, 5)])
    assert_close(run_linear(case, multi_lora_linear), run_reference(case), 2e-6)
