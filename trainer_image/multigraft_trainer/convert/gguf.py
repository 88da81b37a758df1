"""Read GGUF files (versions 2 and 3): metadata and tensors, with numpy alone.

Supports the tensor types of small published models: F32, F16, Q8_0, Q4_1; any other type is refused by name. Knows
nothing of models: names, shapes and the meaning of metadata are for the caller.
Source: GGUF specification, ggml-org/ggml docs/gguf.md; block layouts, ggml-org/ggml src/ggml-common.h.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32  # bytes, unless `general.alignment` says otherwise
BLOCK_ELEMENTS = 32  # values that share one scale in Q8_0 and Q4_1

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def dequantise_f32(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Give the values as they are."""
    values: NDArray[np.float32] = np.frombuffer(data.tobytes(), dtype=np.float32)
    return values


def dequantise_f16(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Widen; no value changes."""
    return np.frombuffer(data.tobytes(), dtype=np.float16).astype(np.float32)


def dequantise_q8_0(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Give 32 values per block of 34 bytes: a fp16 scale d and 32 int8 q; value = d q."""
    blocks = data.reshape(-1, 2 + BLOCK_ELEMENTS)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)  # [num_blocks, 1]
    return (scale * blocks[:, 2:].view(np.int8)).reshape(-1)


def dequantise_q4_1(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Give 32 values per block of 20 bytes: fp16 d and m, 16 bytes of nibbles q; value = d q + m.

    Low nibbles are values 0 to 15, high nibbles values 16 to 31.
    """
    blocks = data.reshape(-1, 4 + BLOCK_ELEMENTS // 2)
    scale_and_offset = blocks[:, :4].copy().view(np.float16).astype(np.float32)  # [num_blocks, 2]
    nibbles = np.concatenate([blocks[:, 4:] & 0x0F, blocks[:, 4:] >> 4], axis=1)  # [num_blocks, 32]
    values: NDArray[np.float32] = scale_and_offset[:, :1] * nibbles + scale_and_offset[:, 1:]
    return values.reshape(-1)


@dataclass(frozen=True)
class TensorType:
    """How values lie in the file."""

    name: str
    block_elements: int
    block_bytes: int
    dequantise: Callable[[NDArray[np.uint8]], NDArray[np.float32]]


TENSOR_TYPES = {
    0: TensorType("F32", 1, 4, dequantise_f32),
    1: TensorType("F16", 1, 2, dequantise_f16),
    3: TensorType("Q4_1", BLOCK_ELEMENTS, 20, dequantise_q4_1),
    8: TensorType("Q8_0", BLOCK_ELEMENTS, 34, dequantise_q8_0),
}


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies."""

    shape: tuple[int, ...]  # row-major: the file's order reversed
    type_id: int
    offset: int  # bytes from the start of the file

    @property
    def type(self) -> TensorType:
        if self.type_id not in TENSOR_TYPES:
            allowed = ", ".join(t.name for t in TENSOR_TYPES.values())
            raise ValueError(f"tensor type: got ggml type {self.type_id}, allowed: {allowed}")
        return TENSOR_TYPES[self.type_id]


class GgufFile:
    """A GGUF file, opened as a memory map.

    Attributes:
        metadata: Key to value, as the file says.
        tensors: Name to place.
    """

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            ValueError: If this is no GGUF file, or one of another version, or one cut short.
        """
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        try:
            self.metadata, self.tensors = _read_header(_Cursor(self._bytes), path)
        except struct.error as error:
            raise ValueError(f"{path.name}: header is cut short") from error

    def load_tensor(self, name: str) -> NDArray[np.float32]:
        """Give one tensor in fp32, row-major.

        Raises:
            ValueError: If the type is not supported or the file ends inside the tensor.
        """
        entry = self.tensors[name]
        num_elements = math.prod(entry.shape)
        num_bytes = num_elements // entry.type.block_elements * entry.type.block_bytes
        data = np.asarray(self._bytes[entry.offset : entry.offset + num_bytes])
        if num_elements % entry.type.block_elements or len(data) != num_bytes:
            raise ValueError(
                f"tensor {name}: {len(data)} bytes for shape {entry.shape} as {entry.type.name}, want {num_bytes}"
            )
        return entry.type.dequantise(data).reshape(entry.shape)


class _Cursor:
    """Reads little-endian values one after another."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data = data
        self.position = 0

    def read(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data.data, self.position)
        self.position += struct.calcsize(f"<{code}")
        return value

    def read_string(self) -> str:
        length = self.read("Q")
        raw: bytes = self.read(f"{min(length, len(self._data))}s")
        return raw.decode("utf-8")

    def read_value(self, type_id: int) -> Any:
        if type_id == _STRING:
            return self.read_string()
        if type_id == _ARRAY:
            element_type, length = self.read("I"), self.read("Q")
            return [self.read_value(element_type) for _ in range(length)]
        if type_id not in _SCALARS:
            raise ValueError(f"metadata value type: got {type_id}, allowed: 0 to 12")
        return self.read(_SCALARS[type_id])


def _read_header(cursor: _Cursor, path: Path) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
    magic, version = cursor.read("4s"), cursor.read("I")
    if magic != MAGIC or version not in (2, 3):
        raise ValueError(f"{path.name}: got magic {magic!r} version {version}, allowed: {MAGIC!r} version 2 or 3")
    num_tensors, num_entries = cursor.read("Q"), cursor.read("Q")
    metadata = {}
    for _ in range(num_entries):
        key = cursor.read_string()
        metadata[key] = cursor.read_value(cursor.read("I"))
    places = {}
    for _ in range(num_tensors):
        name = cursor.read_string()
        shape = tuple(cursor.read("Q") for _ in range(cursor.read("I")))[::-1]
        places[name] = (shape, cursor.read("I"), cursor.read("Q"))
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    start = -(-cursor.position // alignment) * alignment
    return metadata, {name: TensorEntry(shape, type_id, start + at) for name, (shape, type_id, at) in places.items()}
