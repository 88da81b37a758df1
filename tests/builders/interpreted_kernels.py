"""Import kernel modules anew with Triton's CPU interpreter, and leave the process as it was."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType

# All modules that define kernels or import such modules by name; `@triton.jit` decides at import what it makes.
PREFIXES = ("multigraft_kernels.fused_lora", "multigraft_kernels.multi_lora.fused_linear")


@contextlib.contextmanager
def interpreted(name: str) -> Iterator[ModuleType]:
    """Give module `name` with its kernels interpreted; other tests keep the modules that they have."""
    before = {key: module for key, module in sys.modules.items() if key.startswith(PREFIXES)}
    old = os.environ.get("TRITON_INTERPRET")
    for key in before:
        del sys.modules[key]
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        yield importlib.import_module(name)
    finally:
        for key in [key for key in sys.modules if key.startswith(PREFIXES)]:
            del sys.modules[key]
        sys.modules.update(before)
        if old is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = old
