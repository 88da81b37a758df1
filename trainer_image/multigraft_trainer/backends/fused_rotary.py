"""Rotary position embeddings through Liger's fused kernel, where the model's own function computes the same.

Transformers' attention layers look `apply_rotary_pos_emb` up in their own Python module. There it is replaced by one
that takes the fused form inside `use_fused_rotary(True)`, and is the module's own function at all other times, so that
nothing else in the process changes.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn

from multigraft_trainer.backends.fused_trial import agree, is_covered

_LOG = logging.getLogger(__name__)
_NAME = "apply_rotary_pos_emb"

Rotate = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class _Switch:
    """Whether the fused form is taken now. A plain flag: backward, which may recompute, runs in threads of its own."""

    on = False


@contextmanager
def use_fused_rotary(on: bool) -> Iterator[None]:
    """Take the fused form, in modules that have one, for forwards and recomputations inside; or the own one."""
    before, _Switch.on = _Switch.on, on
    try:
        yield
    finally:
        _Switch.on = before


def fuse_rotary(model: nn.Module, dtype: torch.dtype, device: torch.device) -> list[str]:
    """Give the Python modules of the model's layers the switch; name those whose function has a fused form."""
    if not is_covered(dtype, device):
        return []
    names = {type(module).__module__ for module in model.modules()}
    modules = [sys.modules[name] for name in sorted(names) if hasattr(sys.modules.get(name), _NAME)]
    fused = [module.__name__ for module in modules if _fuse(module, dtype, device)]
    _LOG.info("fused rotary embedding: %s", ", ".join(fused) or "none")
    return fused


def _fuse(module: ModuleType, dtype: torch.dtype, device: torch.device) -> bool:
    own: Rotate = getattr(module, _NAME)
    if hasattr(own, "multigraft_own"):
        return True
    if not _agrees(own, dtype, device):
        return False

    @functools.wraps(own)
    def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **more: Any) -> Any:
        if _Switch.on and is_covered(q.dtype, q.device) and not args and not more:
            return _rotate_fused(q, k, cos, sin)
        return own(q, k, cos, sin, *args, **more)

    rotate.multigraft_own = own  # type: ignore[attr-defined]
    setattr(module, _NAME, rotate)
    return True


def _rotate_fused(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    from liger_kernel.ops import LigerRopeFunction

    result: tuple[torch.Tensor, torch.Tensor] = LigerRopeFunction.apply(q, k, cos, sin)
    return result


def _agrees(own: Rotate, dtype: torch.dtype, device: torch.device) -> bool:
    """Compare outputs and gradients for a few tokens; cos and sin have two equal halves, as the fused form assumes."""
    generator = torch.Generator().manual_seed(0)
    tokens, size = 16, 64

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    angles = torch.rand(1, tokens, size // 2, generator=generator).repeat(1, 1, 2).to(device) * 6.0
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    q, k = draw(1, tokens, 4, size), draw(1, tokens, 2, size)
    dq, dk = draw(1, 4, tokens, size), draw(1, 2, tokens, size)
    try:
        got, want = (_run(rotate, q, k, cos, sin, dq, dk) for rotate in (_rotate_fused, own))
    except Exception as error:  # noqa: BLE001 - whatever a compiler or an unknown function may raise, the own one is there
        _LOG.info("fused rotary embedding: %s: %s", type(error).__name__, error)
        return False
    return agree(got, want)


def _run(rotate: Rotate, q: torch.Tensor, k: torch.Tensor, *rest: torch.Tensor) -> list[torch.Tensor]:
    cos, sin, dq, dk = rest
    leaves = [tensor.clone().requires_grad_(True) for tensor in (q, k)]
    with torch.enable_grad():
        # The fused form may write over its inputs, as it does over a projection's output; a leaf must not be written.
        inputs = [(leaf * 1.0).transpose(1, 2) for leaf in leaves]
        outputs = rotate(*inputs, cos, sin)
        grads = torch.autograd.grad(outputs, leaves, (dq.clone(), dk.clone()))
    return [*(output.detach() for output in outputs), *grads]
