"""One checkpoint folder: four files, a manifest with their hashes, and a marker that is written last.

adapter_config.json, adapter_model.safetensors    the fp32 master as an ordinary PEFT adapter
optimizer.safetensors                             Adam's moments
state.json                                        `CheckpointState`
manifest.json                                     SHA-256 and size of each
COMPLETE                                          SHA-256 of the manifest; without it the folder does not count
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from multigraft.api.rules import JsonObject
from multigraft_trainer.adapters.peft_config import CONFIG_FILE, WEIGHTS_FILE, encode_peft_config
from multigraft_trainer.checkpoints.records import CheckpointState, FileEntry, Manifest, NewerFormatError, parse_json
from multigraft_trainer.storage.durable_files import (
    hash_file,
    is_plain_folder,
    read_small_file,
    sync_folder,
    write_new_file,
    write_new_tensors,
)

OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
MARKER_FILE = "COMPLETE"
FILES = (CONFIG_FILE, WEIGHTS_FILE, OPTIMIZER_FILE, STATE_FILE)
MARKER_PATTERN = re.compile(r"[0-9a-f]{64}\n")
FOLDER_PATTERN = re.compile(r"checkpoint-(0|[1-9][0-9]{0,17})")

MAX_JSON_BYTES = 64 * 1024 * 1024  # a summary with a loss for each of a million steps takes about 30 MB
MAX_MARKER_BYTES = 4096
# Missing, a link, or (without a number) what durable_files refuses. Other errors may pass: a mount that is away.
NOT_AS_WRITTEN = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, None)


@dataclass(frozen=True)
class AdapterSnapshot:
    """Everything that one job needs to go on, in any slot of any pool with the same base."""

    state: CheckpointState
    peft_config: JsonObject
    weights: Mapping[str, torch.Tensor]  # fp32 on the CPU, by PEFT key
    moments: Mapping[str, torch.Tensor]  # fp32 on the CPU, by `exp_avg.<key>` and `exp_avg_sq.<key>`


class IncompleteCheckpointError(Exception):
    """The folder has no marker: a save was killed, or it is not ours."""


class CorruptCheckpointError(Exception):
    """The folder was complete once and is not what it was."""


class UnreadableCheckpointError(Exception):
    """The system would not let us read a file that is there; it may be good and readable again later."""


def fill_folder(folder: Path, snapshot: AdapterSnapshot) -> str:
    """Write and sync all files but the marker into an empty folder; give the manifest's SHA-256."""
    write_new_file(folder / CONFIG_FILE, encode_peft_config(snapshot.peft_config))
    write_new_tensors(folder / WEIGHTS_FILE, snapshot.weights)
    write_new_tensors(folder / OPTIMIZER_FILE, snapshot.moments)
    write_new_file(folder / STATE_FILE, snapshot.state.encode())
    entries = {name: hash_file(folder / name) for name in FILES}
    manifest = Manifest(files={name: FileEntry(sha256=sha, num_bytes=size) for name, (sha, size) in entries.items()})
    data = manifest.encode()
    write_new_file(folder / MANIFEST_FILE, data)
    sync_folder(folder)
    return hashlib.sha256(data).hexdigest()


def write_marker(folder: Path, manifest_sha256: str) -> None:
    """Say that the folder is complete."""
    write_new_file(folder / MARKER_FILE, f"{manifest_sha256}\n".encode())
    sync_folder(folder)


def read_marker(folder: Path) -> str:
    """Give the manifest's SHA-256 that the marker names, without a look at the other files.

    Raises:
        IncompleteCheckpointError: If there is no whole marker, or the folder is a link.
    """
    if not is_plain_folder(folder):
        raise IncompleteCheckpointError("is no plain folder")
    try:
        text = read_small_file(folder / MARKER_FILE, max_bytes=MAX_MARKER_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise IncompleteCheckpointError(f"has no readable {MARKER_FILE} marker") from error
    if not MARKER_PATTERN.fullmatch(text):
        raise IncompleteCheckpointError(f"has a {MARKER_FILE} marker that is cut short")
    return text.strip()


def has_our_manifest(folder: Path) -> bool:
    """Tell whether a folder is one of ours, whole or not, and no one else's."""
    try:
        Manifest.decode(read_small_file(folder / MANIFEST_FILE, max_bytes=MAX_JSON_BYTES))
    except (OSError, ValueError):
        return False
    return is_plain_folder(folder)


def verify_folder(folder: Path) -> str:
    """Check marker, manifest and the hash of every file; give the manifest's SHA-256.

    Raises:
        IncompleteCheckpointError: If there is no marker.
        CorruptCheckpointError: If anything is missing or changed; names the file.
        UnreadableCheckpointError: If the system refuses to read a file.
        NewerFormatError: If a newer version wrote it.
    """
    marked = read_marker(folder)
    with _explain_os_errors(MANIFEST_FILE):
        data = read_small_file(folder / MANIFEST_FILE, max_bytes=MAX_JSON_BYTES)
    if hashlib.sha256(data).hexdigest() != marked:
        raise CorruptCheckpointError(f"{MANIFEST_FILE} is not the one that {MARKER_FILE} names")
    try:
        manifest = Manifest.decode(data)
    except NewerFormatError:
        raise
    except ValueError as error:
        raise CorruptCheckpointError(f"{MANIFEST_FILE}: {error}") from error
    if set(manifest.files) != set(FILES):
        raise CorruptCheckpointError(f"{MANIFEST_FILE} lists {sorted(manifest.files)}, want {sorted(FILES)}")
    for name, entry in manifest.files.items():
        _verify_file(folder / name, entry)
    return marked


def load_folder(folder: Path) -> AdapterSnapshot:
    """Read a folder that `verify_folder` accepted.

    Raises:
        CorruptCheckpointError: If a file is not what its name says.
        NewerFormatError: If a newer version wrote it.
    """
    try:
        state = CheckpointState.decode(read_small_file(folder / STATE_FILE, max_bytes=MAX_JSON_BYTES))
        peft_config = parse_json(read_small_file(folder / CONFIG_FILE, max_bytes=MAX_JSON_BYTES))
        weights = safetensors.torch.load_file(folder / WEIGHTS_FILE)
        moments = safetensors.torch.load_file(folder / OPTIMIZER_FILE)
    except NewerFormatError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        raise CorruptCheckpointError(str(error)) from error
    for key, tensor in (*weights.items(), *moments.items()):
        if tensor.dtype != torch.float32:
            raise CorruptCheckpointError(f"{key} is {tensor.dtype}, want torch.float32")
    return AdapterSnapshot(state, peft_config, weights, moments)


@contextmanager
def _explain_os_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in NOT_AS_WRITTEN:
            raise CorruptCheckpointError(f"{name}: {error}") from error
        raise UnreadableCheckpointError(f"{name}: {error}") from error


def _verify_file(path: Path, entry: FileEntry) -> None:
    with _explain_os_errors(path.name):
        sha256, num_bytes = hash_file(path)
    if num_bytes != entry.num_bytes:
        raise CorruptCheckpointError(f"{path.name} has {num_bytes} bytes, its manifest says {entry.num_bytes}")
    if sha256 != entry.sha256:
        raise CorruptCheckpointError(f"{path.name} has SHA-256 {sha256}, its manifest says {entry.sha256}")
