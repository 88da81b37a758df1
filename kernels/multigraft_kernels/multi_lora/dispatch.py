"""Which form of the multi-adapter linear a layer gets, and why: fused kernels where they win, else plain torch.

The fused form is taken on Hopper GPUs for bf16 and fp16 layers that TMA can reach, after one small layer has run
both ways
on the device and agreed. Elsewhere the plain form is as fast: without the Hopper GEMM the fused kernels save
reading, but
pay for an adapters' part that goes through memory (docs/benchmarks/fused_lora_h200_2026-12-01.md).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from multigraft_kernels.counter_dropout import DropoutRows, DropoutTable, build_threshold
from multigraft_kernels.launch.device_class import find_device_class
from multigraft_kernels.multi_lora import segmented
from multigraft_kernels.multi_lora.segments import LoraGrads, LoraSegment

MAX_RANK = 256

Linear = Callable[..., torch.Tensor]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PathChoice:
    """The form that a layer gets."""

    fused: bool
    reason: str  # for the plain form, what speaks against the fused one; else which fused path it is


def multi_lora_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    segments: Sequence[LoraSegment],
    *,
    dropout: tuple[DropoutRows, DropoutTable] | None = None,
    grads: Sequence[LoraGrads] | None = None,
) -> torch.Tensor:
    """Give y, [T, N], by the form that `choose_path` names; else as `segmented.multi_lora_linear`."""
    linear: Linear = segmented.multi_lora_linear
    if choose_path(x, weight, a, b).fused:
        linear = _import_fused()
    return linear(x, weight, bias, a, b, segments, dropout=dropout, grads=grads)


def choose_path(x: torch.Tensor, weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> PathChoice:
    """Choose for x [T, K], weight [N, K], A [slots, maxRank, K] and B [slots, N, maxRank]; a new reason is logged once.

    Nothing depends on T or on which adapters have rows, so that a job keeps its path while others come and go.
    """
    reasons = (
        _object_to_device(x.device),
        _object_to_dtype(x, weight, a, b),
        _object_to_shape(weight, b),
    )
    reason = next((reason for reason in reasons if reason), None) or _probe(x.device, x.dtype)
    choice = PathChoice(False, reason) if reason else PathChoice(True, "Hopper GEMM with the adapters' part inside")
    _log_once(choice)
    return choice


def _object_to_device(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"device: {device.type} has no fused kernels"
    if torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        return "device: the fused kernels need CUDA and Triton"
    name, hopper = find_device_class(device)
    return None if hopper else f"device: no fused GEMM for the class {name!r}, only for Hopper GPUs"


def _object_to_dtype(x: torch.Tensor, *others: torch.Tensor) -> str | None:
    if x.dtype not in (torch.bfloat16, torch.float16):
        return f"dtype: {x.dtype} has no fused GEMM, only bfloat16 and float16 have"
    mixed = {str(tensor.dtype) for tensor in others if tensor.dtype != x.dtype}
    return f"dtype: x is {x.dtype}, the weights are {', '.join(sorted(mixed))}" if mixed else None


def _object_to_shape(weight: torch.Tensor, b: torch.Tensor) -> str | None:
    N, K = weight.shape
    max_rank = b.shape[2]
    if K % 8 or N % 8:
        return f"shape: in {K}, out {N}; TMA reads rows of whole 16 bytes, so both must be multiples of 8"
    if max_rank > MAX_RANK:
        return f"rank: the slots are {max_rank} wide, the fused kernels go to {MAX_RANK}"
    if weight.stride(1) != 1 or weight.stride(0) % 8 or weight.data_ptr() % 16:
        return f"shape: the weight has strides {weight.stride()}; TMA reads rows that start on 16 bytes"
    return None


def _import_fused() -> Linear:
    from multigraft_kernels.multi_lora.fused_linear import fused_multi_lora_linear  # imports Triton

    return fused_multi_lora_linear


@functools.cache
def _probe(device: torch.device, dtype: torch.dtype) -> str | None:
    """Run a small layer once per device and dtype, both ways; give what speaks against the fused form."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "choose_path must be called once before a CUDA graph is captured: it runs a small layer first"
        )
    return find_disagreement(device, dtype, _import_fused)


def find_disagreement(device: torch.device, dtype: torch.dtype, import_fused: Callable[[], Linear]) -> str | None:
    """Compare a form with the plain one on a small layer: output and every gradient; None if they agree.

    A form that cannot even be imported or compiled disagrees: a job must not be lost to a compiler.
    """

    def run_both() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        got = _run_small_layer(import_fused(), device, dtype)
        return got, _run_small_layer(segmented.multi_lora_linear, device, dtype)

    try:
        # In a thread of its own: this may be called without grad mode, or inside a checkpointed layer, whose hooks on
        # saved tensors would take the small layer's backward for their own. Both are a thread's.
        with ThreadPoolExecutor(1) as thread:
            got, want = thread.submit(run_both).result()
    except Exception as error:  # noqa: BLE001 - whatever a compiler or driver may raise, the plain form is there
        return f"probe: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for name, one, other in zip(("y", "dX", "dA", "dB"), got, want, strict=True):
        error_norm = float((one.float() - other.float()).norm() / other.float().norm())
        if not error_norm <= 0.02:  # bf16 rounds to 0.4 %; NaN does not pass
            return f"probe: {name} differs from the plain form by {error_norm:.3g} of its norm"
    return None


def _run_small_layer(linear: Linear, device: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
    T, K, N, rank = 200, 256, 512, 16
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) / shape[-1] ** 0.5).to(device, dtype)  # type: ignore[no-any-return]

    x, dy = draw(T, K).requires_grad_(True), draw(T, N)
    weight, a, b = draw(N, K), draw(2, rank, K), draw(2, N, rank)
    owners = torch.tensor([0] * 90 + [1] * 110, dtype=torch.int32)
    zeros = torch.zeros(T, dtype=torch.int32)
    rows = DropoutRows(owners, torch.arange(T, dtype=torch.int32), zeros, zeros).to(device)
    table = DropoutTable.build([1, 2], [build_threshold(0.1), 0]).to(device)
    segments = [LoraSegment(0, 0, 90, rank, 2.0), LoraSegment(1, 90, T, rank - 5, 1.0)]
    sinks = [LoraGrads(torch.zeros(s.rank, K, device=device), torch.zeros(N, s.rank, device=device)) for s in segments]
    y = linear(x, weight, None, a, b, segments, dropout=(rows, table), grads=sinks)
    y.backward(dy)  # type: ignore[no-untyped-call]
    grad = x.grad if x.grad is not None else torch.zeros_like(x)
    return [y.detach(), grad, torch.cat([sink.a for sink in sinks]), torch.cat([sink.b for sink in sinks], dim=1)]


@functools.cache
def _log_once(choice: PathChoice) -> None:
    _LOG.info("multi-adapter linear: %s form: %s", "fused" if choice.fused else "plain", choice.reason)
