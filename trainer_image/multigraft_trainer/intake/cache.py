"""Cache of tokenised datasets: one safetensors file per key. Whatever is wrong with it, it is made anew."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.samples import DroppedRow, IntakeReport, TokenisedDataset, TokenisedSample

_log = logging.getLogger(__name__)
_LIBRARIES = ("jinja2", "pyarrow", "tokenizers", "transformers")
_CHUNK_BYTES = 2**20

Arrays = dict[str, NDArray[Any]]


def build_key(*, content_sha256: str, tokenizer_sha256: str, options: IntakeOptions, embedding_rows: int) -> str:
    """Build the SHA-256 over everything that the samples depend on: content, tokenizer and template, options, code."""
    parts = {
        "content": content_sha256,
        "tokenizer": tokenizer_sha256,
        "options": {name: str(value) for name, value in asdict(options).items()},
        "embedding_rows": embedding_rows,
        "code": _code_version(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@cache
def _code_version() -> str:
    """Build a hash of intake's own source and of the libraries that read, render and tokenise."""
    digest = hashlib.sha256(" ".join(version(library) for library in _LIBRARIES).encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    """Give the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_cached(folder: Path, key: str) -> TokenisedDataset | None:
    """Load a dataset from the cache; None if it is not there, damaged, or another one than the key says."""
    path = _path(folder, key)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays: Arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if metadata.get("sha256") != _digest(arrays, metadata["report"], key):
            raise ValueError("hash mismatch")  # noqa: TRY301
        return _unpack(arrays, json.loads(metadata["report"]))
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("tokenised dataset %s in the cache is damaged (%s); made anew", key[:12], type(error).__name__)
        return None


def save_cached(folder: Path, key: str, dataset: TokenisedDataset) -> None:
    """Save a dataset in the cache, atomically. A cache that cannot be written is no reason to fail: it is logged."""
    report = json.dumps(asdict(dataset.report))
    arrays = _pack(dataset.samples)
    metadata = {"report": report, "sha256": _digest(arrays, report, key)}
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".tokenised-")
        os.close(handle)
        save_file(arrays, temporary, metadata)
        with open(temporary, "rb") as file:  # noqa: PTH123 (mkstemp gives a str)
            os.fsync(file.fileno())
        os.replace(temporary, _path(folder, key))  # noqa: PTH105
    except (OSError, SafetensorError) as error:
        _log.warning("tokenised dataset is not cached: %s", type(error).__name__)
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key}.safetensors"


def _pack(samples: Sequence[TokenisedSample]) -> Arrays:
    lengths = np.asarray([sample.num_tokens for sample in samples], dtype=np.int64)
    return {
        "rows": np.asarray([sample.row for sample in samples], dtype=np.int64),  # [S]
        "lengths": lengths,  # [S] tokens
        "input_ids": np.concatenate([sample.input_ids for sample in samples]).astype(np.int32),  # [sum of lengths]
        "supervised": np.concatenate([sample.supervised for sample in samples]).astype(np.uint8),  # [sum of lengths]
    }


def _unpack(arrays: Arrays, report: dict[str, Any]) -> TokenisedDataset:
    ends = np.cumsum(arrays["lengths"])
    input_ids = np.split(arrays["input_ids"], ends[:-1])
    supervised = np.split(arrays["supervised"].astype(np.bool_), ends[:-1])
    rows = arrays["rows"].tolist()
    samples = (TokenisedSample(*fields) for fields in zip(rows, input_ids, supervised, strict=True))
    dropped = tuple(DroppedRow(**row) for row in report.pop("dropped"))
    return TokenisedDataset.build(samples, IntakeReport(**report, dropped=dropped))


def _digest(arrays: Arrays, report: str, key: str) -> str:
    digest = hashlib.sha256(f"{key}\0{report}\0".encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}\0".encode())
        digest.update(array.data)
    return digest.hexdigest()
