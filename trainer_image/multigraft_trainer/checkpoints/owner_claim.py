"""Who trains a job: a file beside its checkpoints, so that of two live trainers on one storage only the later writes.

It happens: a node is cut off, someone deletes its pod's object by force, and the job is placed anew while the first
trainer trains on. A trainer claims a job when it begins with it and looks again before it writes a checkpoint or the
adapter. A claim is as late as the desired set that it comes from, so the first trainer cannot take the job back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.durable_files import make_root, refuse_if_not_writable, replace_file

FILE = "owner.json"


@dataclass(frozen=True)
class Claim:
    """A trainer's claim: epoch and sequence of the desired set that it obeys, and the trainer's own name."""

    epoch: int
    sequence: int
    owner: str  # of one process

    @property
    def age(self) -> tuple[int, int]:
        """Give what orders claims: the greater one is later."""
        return self.epoch, self.sequence


class OwnerClaims:
    """The claims of one trainer process."""

    def __init__(self, build: Callable[[], Claim]) -> None:
        """Take a function that gives the claim of now."""
        self._build = build

    def take(self, folder: Path) -> None:
        """Claim the job whose checkpoints lie in `folder`.

        Raises:
            RefusalError: CLAIM_LOST, if a later claim is there; OUTPUT_NOT_WRITABLE.
        """
        mine, found = self._build(), _read(folder)
        if found is not None and found.owner != mine.owner and found.age > mine.age:
            raise _refuse(folder, found)
        with refuse_if_not_writable(f"claim in {folder}"):
            make_root(folder)
            replace_file(folder / FILE, json.dumps(asdict(mine)).encode())

    def check(self, folder: Path) -> None:
        """Make sure that the job is still this trainer's.

        Raises:
            RefusalError: CLAIM_LOST, if another one has claimed it.
        """
        found = _read(folder)
        if found is not None and found.owner != self._build().owner:
            raise _refuse(folder, found)


def _read(folder: Path) -> Claim | None:
    """Read the claim; None if there is none, or none that can be read: a claim is written whole or not at all."""
    try:
        return Claim(**json.loads((folder / FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _refuse(folder: Path, found: Claim) -> RefusalError:
    return RefusalError(Reason.CLAIM_LOST, f"{folder.name}: trained by {found.owner}, of epoch {found.epoch}, now")
