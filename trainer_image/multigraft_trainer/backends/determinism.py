"""The same microbatch gives the same bits on the same GPU, as a resumed run needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.utils.deterministic


@contextmanager
def deterministic_backward(device: torch.device) -> Iterator[None]:
    """Run a backward pass in deterministic mode on a GPU.

    Without it flash attention's backward adds dq with atomics, in whatever order the blocks come. Everything else that
    the backend runs is deterministic anyway; a CPU needs nothing.
    """
    if device.type != "cuda":
        yield
        return
    # torch refuses cuBLAS in this mode without a fixed workspace; this is the size it has on Hopper by default.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    mode = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
