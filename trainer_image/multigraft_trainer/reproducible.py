"""The same work gives the same bits, in this process and the next: what must be set before torch is imported."""

from __future__ import annotations

import os

# MKL picks a kernel by the alignment of its operands unless told not to, so that a resumed process, whose memory is
# laid out otherwise, differed in the last bit (docs/experiment-log.md, 2026-11-30). STRICT fixes the kernel for a CPU.
_ENVIRONMENT = {"MKL_CBWR": "AUTO,STRICT"}


def set_reproducible_environment() -> None:
    """Set what the numerical libraries read when they start; a value that the user has set stays."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
