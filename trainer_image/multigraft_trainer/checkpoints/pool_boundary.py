"""Pool checkpoints: one file names, for one plan boundary, every job's checkpoint and every result.

    <root>/pool/boundary-<number>.json    written last, by rename: {"body": `Boundary`, "sha256": of the body}

A boundary that is there is whole: the jobs were saved before it was written, and what it names is not pruned.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from multigraft.api.rules import JsonObject
from multigraft_trainer.checkpoints.checkpoint_folder import MAX_JSON_BYTES
from multigraft_trainer.checkpoints.job_checkpoints import PassedOver
from multigraft_trainer.checkpoints.quarantine import set_aside
from multigraft_trainer.checkpoints.records import (
    Boundary,
    CheckpointRef,
    NewerFormatError,
    code_version,
    parse_json,
)
from multigraft_trainer.storage.atomic_folder import remove_leftovers
from multigraft_trainer.storage.durable_files import (
    is_plain_folder,
    make_folders,
    make_root,
    read_small_file,
    refuse_if_not_writable,
    replace_file,
)

OWN_NAME = re.compile(r"boundary-(0|[1-9][0-9]{0,17})\.json")


@dataclass(frozen=True)
class RestoredBoundary:
    """The newest boundary that can be read; all empty on a first start."""

    boundary: Boundary | None = None
    passed_over: tuple[PassedOver, ...] = ()


class BoundaryFiles:
    """The boundary files of one pool."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / "pool"

    def save(self, *, running: Mapping[str, CheckpointRef], ended: Mapping[str, JsonObject]) -> int:
        """Write the next boundary and give its number.

        Raises:
            RefusalError: OUTPUT_NOT_WRITABLE; earlier boundaries stay good.
        """
        number = 1 + max(map(_number_of, self._list()), default=-1)
        boundary = Boundary(code_version=code_version(), number=number, running=dict(running), ended=dict(ended))
        sealed = _seal(boundary)
        with refuse_if_not_writable(f"pool checkpoint {number}"):
            make_root(self._root)
            make_folders(self._folder, below=self._root)
            remove_leftovers(self._folder)
            replace_file(self._folder / f"boundary-{number}.json", sealed)
        return number

    def load_newest(self) -> RestoredBoundary:
        """Load the newest boundary by number whose content matches its hash; a damaged one is set aside by rename.

        Raises:
            ValueError: If the newest one was written by a newer version.
        """
        passed_over: list[PassedOver] = []
        for path in self._list():
            try:
                boundary = _unseal(path)
            except NewerFormatError:
                raise
            except (OSError, ValueError) as error:
                passed_over.append(PassedOver(path.name, f"is corrupt: {error}; {set_aside(path)}"))
                continue
            return RestoredBoundary(boundary, tuple(passed_over))
        return RestoredBoundary(passed_over=tuple(passed_over))

    def prune(self, *, keep_last: int) -> tuple[Boundary, ...]:
        """Remove all but the newest `keep_last` readable boundaries; give those kept.

        Raises:
            RefusalError: OUTPUT_NOT_WRITABLE.
        """
        kept: list[Boundary] = []
        with refuse_if_not_writable("old pool checkpoints"):
            for path in self._list():
                boundary = _try_unseal(path) if len(kept) < keep_last else None
                if boundary is None:
                    path.unlink()
                else:
                    kept.append(boundary)
        return tuple(kept)

    def _list(self) -> list[Path]:
        """Give our files, highest number first."""
        if not is_plain_folder(self._folder):
            return []
        found = [path for path in self._folder.iterdir() if OWN_NAME.fullmatch(path.name)]
        return sorted(found, key=_number_of, reverse=True)


def _seal(boundary: Boundary) -> bytes:
    body = boundary.encode().decode()
    return _encode({"body": json.loads(body), "sha256": hashlib.sha256(body.encode()).hexdigest()})


def _unseal(path: Path) -> Boundary:
    found = parse_json(read_small_file(path, max_bytes=MAX_JSON_BYTES))
    if not isinstance(found, dict) or set(found) != {"body", "sha256"}:
        raise ValueError("want an object with body and sha256")
    boundary = Boundary.decode(json.dumps(found["body"]).encode())
    if hashlib.sha256(boundary.encode()).hexdigest() != found["sha256"]:
        raise ValueError("its SHA-256 is not that of its content")
    if boundary.number != _number_of(path):
        raise ValueError(f"its number is {boundary.number}")
    return boundary


def _try_unseal(path: Path) -> Boundary | None:
    try:
        return _unseal(path)
    except (OSError, ValueError):
        return None


def _encode(data: JsonObject) -> bytes:
    return (json.dumps(data, sort_keys=True, allow_nan=False) + "\n").encode()


def _number_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])
