"""What forward leaves for backward, beside x and s: the layer, its rows, and how to launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from multigraft_kernels.fused_lora.operands import Dropout
from multigraft_kernels.launch.choices import LaunchChoice
from multigraft_kernels.multi_lora.fused.routes import RouteTables
from multigraft_kernels.multi_lora.segments import LoraGrads, LoraSegment


@dataclass(frozen=True)
class FusedCall:
    """One call of the fused linear; all segments have rows."""

    weight: torch.Tensor  # [N, K]
    bias: torch.Tensor | None  # [N]
    a: torch.Tensor  # [slots, maxRank, K]
    b: torch.Tensor  # [slots, N, maxRank]
    segments: Sequence[LoraSegment]
    routes: RouteTables
    dropout: Dropout | None
    grads: Sequence[LoraGrads] | None  # one per segment; None: A and B are frozen
    launch: LaunchChoice
