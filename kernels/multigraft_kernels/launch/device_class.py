"""Which launch table a device uses."""

from __future__ import annotations

import functools

import torch

_BY_NAME = (("H200", "h200"), ("H100", "h100"), ("L40S", "l40s"), ("A100", "a100"))


def find_device_class(device: torch.device) -> tuple[str, bool]:
    """Give the class ("h200", "h100", "l40s", "a100", "hopper", "cuda", "cpu") and if it has Hopper's instructions."""
    if device.type != "cuda":
        return "cpu", False
    return _find(device.index if device.index is not None else torch.cuda.current_device())


@functools.cache
def _find(index: int) -> tuple[str, bool]:
    properties = torch.cuda.get_device_properties(index)
    hopper = torch.version.cuda is not None and (properties.major, properties.minor) == (9, 0)
    for text, name in _BY_NAME:
        if text in properties.name:
            return name, hopper
    return ("hopper" if hopper else "cuda"), hopper
