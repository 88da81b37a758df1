"""Norms and gated MLPs of the frozen base through Liger's fused kernels, where those compute what the module computes.

What a module computes is tried on a few rows on the device, not read off its name: a norm or an MLP of an unknown kind
(another activation, another offset of the weight) keeps its own code, and the log says which and why.

    norm   x / rms(x) * (offset + w)        offset 0 (Llama, Qwen, Mistral) or 1 (Gemma)
    MLP    down(silu(gate(x)) * up(x))

Rows do not mix in either, so samples and adapters stay as separate as they were. 16-bit models on CUDA devices only: in
fp32, and on CPUs, the model's own code is the reference.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from multigraft_trainer.backends.fused_trial import agree, is_covered

_LOG = logging.getLogger(__name__)
_ROWS = 16
_NORM_KINDS = ((0.0, "llama"), (1.0, "gemma"))  # offset of the weight, where Liger rounds

Forward = Callable[[torch.Tensor], torch.Tensor]


def fuse_modules(model: nn.Module, dtype: torch.dtype, device: torch.device) -> Counter[str]:
    """Give norms and MLPs of `model` a fused forward in place; count what was fused, by "norm" and "mlp"."""
    fused: Counter[str] = Counter()
    if not is_covered(dtype, device):
        return fused
    refused: Counter[str] = Counter()
    for module in model.modules():
        kind = _kind_of(module)
        if kind is None:
            continue
        candidates = _norm_forwards(module) if kind == "norm" else [functools.partial(_run_mlp, module)]
        chosen = next((forward for forward in candidates if _agrees(module, forward, dtype, device)), None)
        if chosen is None:
            refused[f"{type(module).__name__} computes something else"] += 1
        else:
            module.forward = chosen
            fused[kind] += 1
    _LOG.info(
        "fused forms: %d norms, %d MLPs; plain: %s",
        fused["norm"],
        fused["mlp"],
        ", ".join(f"{count} {reason}" for reason, count in refused.items()) or "none",
    )
    return fused


def _kind_of(module: nn.Module) -> str | None:
    if type(module).__name__.endswith("RMSNorm") and getattr(module, "weight", None) is not None:
        return "norm"
    projections = ("gate_proj", "up_proj", "down_proj")
    if all(isinstance(getattr(module, name, None), nn.Linear) for name in projections):
        return "mlp"
    return None


def _norm_forwards(module: nn.Module) -> list[Forward]:
    epsilon = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
    if epsilon is None:
        return []
    return [functools.partial(_run_norm, module, float(epsilon), offset, casting) for offset, casting in _NORM_KINDS]


def _run_norm(module: Any, epsilon: float, offset: float, casting: str, x: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops import LigerRMSNormFunction

    # in_place False: the gradient that comes in may be that of a residual stream, which others read too.
    y: torch.Tensor = LigerRMSNormFunction.apply(x, module.weight, epsilon, offset, casting, False)
    return y


def _run_mlp(module: Any, x: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops import LigerSiLUMulFunction

    y: torch.Tensor = module.down_proj(LigerSiLUMulFunction.apply(module.gate_proj(x), module.up_proj(x)))
    return y


def _agrees(module: Any, forward: Forward, dtype: torch.dtype, device: torch.device) -> bool:
    """Compare output and input gradient on a few rows."""
    features = module.gate_proj.in_features if hasattr(module, "gate_proj") else module.weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(1, _ROWS, int(features), generator=generator).to(device, dtype) for _ in range(2))
    try:
        got, want = (_run_both_ways(run, x, dy) for run in (forward, module.forward))
    except Exception as error:  # noqa: BLE001 - whatever a compiler or an unknown module may raise, its own code is there
        _LOG.info("fused form of %s: %s: %s", type(module).__name__, type(error).__name__, error)
        return False
    return agree(got, want)


def _run_both_ways(run: Forward, x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = x.clone().requires_grad_(True)
    with torch.enable_grad():
        y = run(inputs)
        (dx,) = torch.autograd.grad(y, inputs, dy[..., : y.shape[-1]])
    return y.detach(), dx
