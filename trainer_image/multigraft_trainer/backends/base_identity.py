"""Tell one base model from another: a fingerprint that checkpoints remember, so that none resumes on other weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

_SAMPLE_BYTES = (
    1024 * 1024
)  # read at each end and in the middle of a file; hashing all of a 16 GB base takes half a minute


def fingerprint_base(folder: Path) -> str:
    """Give a SHA-256 over config.json and, of each weights file, name, size, beginning, middle and end."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for start in (0, max(0, (size - _SAMPLE_BYTES) // 2), max(0, size - _SAMPLE_BYTES)):
                file.seek(start)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
