"""The multi-adapter LoRA linear as a plain differentiable loop; every fast form is tested against it.

    y = x W^T + bias;  y[rows of i] += scaling_i (dropout_i(x[rows of i]) A_i^T) B_i^T

Shapes   x [T, K], weight [N, K], bias [N], a [slots, maxRank, K], b [slots, N, maxRank], y [T, N]
Source   LoRA (arXiv:2106.09685), eq. 3, with dropout on the input of the low-rank path alone, as PEFT has it
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from multigraft_kernels.counter_dropout.reference import build_multiplier
from multigraft_kernels.counter_dropout.rows import DropoutRows, DropoutTable
from multigraft_kernels.multi_lora.segments import LoraSegment


def multi_lora_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    segments: Sequence[LoraSegment],
    dropout: tuple[DropoutRows, DropoutTable] | None = None,
) -> torch.Tensor:
    """Give y, [T, N]; differentiable in x, a and b by autograd. `grad_weight` of the segments plays no part."""
    outputs = []
    base = F.linear(x, weight, bias)
    multiplier = build_multiplier(*dropout, x.shape[1]).to(x) if dropout is not None else None
    end = 0
    for segment in segments:
        outputs.append(base[end : segment.start])
        rows = slice(segment.start, segment.end)
        low = x[rows] if multiplier is None else x[rows] * multiplier[rows]
        s = low @ a[segment.slot, : segment.rank].T
        outputs.append(base[rows] + segment.scaling * (s @ b[segment.slot, :, : segment.rank].T))
        end = segment.end
    outputs.append(base[end:])
    return torch.cat(outputs)
