"""Numbers as people read them; what is unknown or not finite is `-`, never 0."""

from __future__ import annotations

import math

UNKNOWN = "-"


def format_loss(loss: float | None) -> str:
    """Give a loss in nats with three decimals."""
    return f"{loss:.3f}" if loss is not None and math.isfinite(loss) else UNKNOWN


def format_count(count: float | None) -> str:
    """Give a whole number with thousands separators."""
    return f"{count:,.0f}" if count is not None and math.isfinite(count) else UNKNOWN


def format_share(share: float | None) -> str:
    """Give a share of 1 in per cent."""
    return f"{100 * share:.0f} %" if share is not None and math.isfinite(share) else UNKNOWN


def format_bytes(num_bytes: int) -> str:
    """Give a size in GiB or MiB; 0 stands for unknown."""
    if not num_bytes:
        return UNKNOWN
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
