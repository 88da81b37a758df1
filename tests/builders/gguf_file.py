"""Write small GGUF files, the inverse of what the reader does; F32 tensors or raw bytes of any type."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

ALIGNMENT = 32


def write_gguf(
    path: Path,
    metadata: dict[str, Any],
    tensors: dict[str, np.ndarray | tuple[tuple[int, ...], int, bytes]],
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
) -> Path:
    """Write a file; a tensor is an fp32 array, or (row-major shape, ggml type, bytes)."""
    entries = {name: _as_entry(tensor) for name, tensor in tensors.items()}
    header = magic + struct.pack("<IQQ", version, len(entries), len(metadata))
    for key, value in metadata.items():
        header += _string(key) + _typed(value)
    body = b""
    for name, (shape, type_id, data) in entries.items():
        header += _string(name) + struct.pack("<I", len(shape))
        header += struct.pack(f"<{len(shape)}Q", *shape[::-1]) + struct.pack("<IQ", type_id, len(body))
        body += data + b"\0" * (-len(data) % ALIGNMENT)
    path.write_bytes(header + b"\0" * (-len(header) % ALIGNMENT) + body)
    return path


def _as_entry(tensor: np.ndarray | tuple[tuple[int, ...], int, bytes]) -> tuple[tuple[int, ...], int, bytes]:
    if isinstance(tensor, tuple):
        return tensor
    return tensor.shape, 0, np.ascontiguousarray(tensor, dtype=np.float32).tobytes()


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    elements = [_typed(item) for item in value]
    kind = elements[0][:4] if elements else struct.pack("<I", 4)
    return struct.pack("<I", 9) + kind + struct.pack("<Q", len(elements)) + b"".join(item[4:] for item in elements)
