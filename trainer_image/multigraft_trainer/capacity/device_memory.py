"""What the capacity depends on in a machine: its device, and how to try sizes on it without harm."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

KEPT_BACK_SHARE = 0.05
"""Share of a GPU's memory that trials leave to what lives outside torch's allocator, such as cuBLAS workspaces."""

_MEMORY_WORDS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device; two of one kind take the same microbatches."""

    name: str
    total_bytes: int  # 0: not part of the kind (a CPU's memory is shared and changes)
    is_gpu: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.total_bytes / 2**30:.0f} GiB)" if self.total_bytes else self.name


def describe_device(device: torch.device) -> DeviceKind:
    """Name the kind of `device`."""
    if device.type != "cuda":
        return DeviceKind("CPU", 0, is_gpu=False)
    properties = torch.cuda.get_device_properties(device)
    return DeviceKind(properties.name, properties.total_memory, is_gpu=True)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether the error says that memory ran out, in torch's own class or in a library's words."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY_WORDS)


def free_memory() -> None:
    """Give back what torch's allocator holds of a GPU and nothing uses."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()  # does nothing before the device is used


def wait_for_device() -> None:
    """Wait until everything that was launched has run."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def keep_memory_back(device: torch.device) -> Iterator[None]:
    """Let torch's allocator have all but `KEPT_BACK_SHARE` of a GPU's memory inside the block."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_per_process_memory_fraction(1 - KEPT_BACK_SHARE, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
