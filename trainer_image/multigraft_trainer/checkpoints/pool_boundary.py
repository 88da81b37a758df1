"""Pool checkpoints: one file names, for one plan boundary, every job's checkpoint, every result and the next plan.

    <root>/pool/plan-<number>.json        written first
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
    PlanRef,
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

OWN_NAME = re.compile(r"(boundary|plan)-(0|[1-9][0-9]{0,17})\.json")


@dataclass(frozen=True)
class RestoredBoundary:
    """The newest boundary that can be read; all empty on a first start."""

    boundary: Boundary | None = None
    next_plan: JsonObject | None = None  # `Plan.to_json`; None: none was saved, or its file is damaged
    passed_over: tuple[PassedOver, ...] = ()


class BoundaryFiles:
    """The boundary and plan files of one pool."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / "pool"

    def save(
        self,
        *,
        running: Mapping[str, CheckpointRef],
        ended: Mapping[str, JsonObject],
        next_plan: JsonObject | None,
    ) -> int:
        """Write the next boundary and give its number.

        Raises:
            RefusalError: OUTPUT_NOT_WRITABLE; earlier boundaries stay good.
            ValueError: If the plan holds NaN or infinity; nothing is written then.
        """
        number = 1 + max((_number_of(path) for path in self._list("boundary", "plan")), default=-1)
        plan, plan_ref = (None, None) if next_plan is None else _encode_plan(number, next_plan)
        boundary = Boundary(
            code_version=code_version(), number=number, running=dict(running), ended=dict(ended), next_plan=plan_ref
        )
        sealed = _seal(boundary)
        with refuse_if_not_writable(f"pool checkpoint {number}"):
            make_root(self._root)
            make_folders(self._folder, below=self._root)
            remove_leftovers(self._folder)
            if plan is not None:
                replace_file(self._folder / f"plan-{number}.json", plan)
            replace_file(self._folder / f"boundary-{number}.json", sealed)
        return number

    def load_newest(self) -> RestoredBoundary:
        """Load the newest boundary by number whose content matches its hash; a damaged one is set aside by rename.

        Raises:
            ValueError: If the newest one was written by a newer version.
        """
        passed_over: list[PassedOver] = []
        for path in self._list("boundary"):
            try:
                boundary = _unseal(path)
            except NewerFormatError:
                raise
            except (OSError, ValueError) as error:
                passed_over.append(PassedOver(path.name, f"is corrupt: {error}; {set_aside(path)}"))
                continue
            return RestoredBoundary(boundary, self._load_plan(boundary, passed_over), tuple(passed_over))
        return RestoredBoundary(passed_over=tuple(passed_over))

    def prune(self, *, keep_last: int) -> tuple[Boundary, ...]:
        """Remove all but the newest `keep_last` readable boundaries and the plans they name; give those kept.

        Raises:
            RefusalError: OUTPUT_NOT_WRITABLE.
        """
        kept: list[Boundary] = []
        with refuse_if_not_writable("old pool checkpoints"):
            for path in self._list("boundary"):
                boundary = _try_unseal(path) if len(kept) < keep_last else None
                if boundary is None:
                    path.unlink()
                else:
                    kept.append(boundary)
            named = {boundary.next_plan.file for boundary in kept if boundary.next_plan}
            for path in self._list("plan"):
                if path.name not in named:
                    path.unlink()
        return tuple(kept)

    def _load_plan(self, boundary: Boundary, passed_over: list[PassedOver]) -> JsonObject | None:
        ref = boundary.next_plan
        if ref is None:
            return None
        try:
            return _read_plan(self._folder, ref)
        except (OSError, ValueError) as error:
            passed_over.append(PassedOver(ref.file, f"is corrupt: {error}; the work is planned anew"))
            return None

    def _list(self, *kinds: str) -> list[Path]:
        """Give our files of these kinds, highest number first."""
        if not is_plain_folder(self._folder):
            return []
        found = [path for path in self._folder.iterdir() if _kind_of(path) in kinds]
        return sorted(found, key=_number_of, reverse=True)


def _encode_plan(number: int, plan: JsonObject) -> tuple[bytes, PlanRef]:
    data = _encode(plan)
    return data, PlanRef(file=f"plan-{number}.json", sha256=hashlib.sha256(data).hexdigest())


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


def _read_plan(folder: Path, ref: PlanRef) -> JsonObject:
    data = read_small_file(folder / ref.file, max_bytes=MAX_JSON_BYTES)
    if hashlib.sha256(data).hexdigest() != ref.sha256:
        raise ValueError("its SHA-256 is not the one that the boundary names")
    return dict(parse_json(data))


def _kind_of(path: Path) -> str | None:
    match = OWN_NAME.fullmatch(path.name)
    return match[1] if match else None


def _number_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])
