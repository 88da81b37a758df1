"""When a fused form of a base's own code may be taken: where it is meant for, and whether a trial of both agrees."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_TOLERANCE = 0.02  # of the norm; bf16 rounds to 0.4 %, another offset, activation or order of features is far off


def is_covered(dtype: torch.dtype, device: torch.device) -> bool:
    """Tell whether fused forms are for this model: 16 bits on a GPU; in fp32 its own code is the reference."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def agree(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> bool:
    """Tell whether results agree, each to 2 % of its norm; NaN never does."""
    return all(
        float((one.float() - other.float()).norm() / other.float().norm().clamp_min(1e-20)) <= _TOLERANCE
        for one, other in zip(got, want, strict=True)
    )
