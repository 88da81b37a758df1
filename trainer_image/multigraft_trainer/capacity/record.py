"""A capacity on disk: what it was found for, and what it is. JSON, read strictly.

<plans>/capacity.json          the one that the plans there were made with; a resumed run keeps it
<cache>/capacity/<key>.json    measured ones, for a restart on other storage
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic.alias_generators import to_camel

import multigraft_kernels
import multigraft_trainer
from multigraft.planner.cost import CostModel
from multigraft_trainer.checkpoints.records import Record
from multigraft_trainer.storage.durable_files import make_root, read_small_file, replace_file

MAX_BYTES = 64 * 1024
KEPT_NAME = "capacity.json"
CACHE_FOLDER = "capacity"
_LIBRARIES = ("torch", "transformers", "triton")

Milliseconds = Annotated[float, Field(ge=0)]


class Circumstances(Record):
    """Everything of a pool and a machine that its capacity depends on, the code apart."""

    base: str  # fingerprint
    dtype: str
    device: str
    device_bytes: Annotated[int, Field(ge=0)]
    max_slots: int
    max_rank: int
    target_names_sha256: str
    gradient_checkpointing: bool
    tile_tokens: int


class CapacityRecord(Record):
    """A capacity that was found, and how."""

    format: Literal[1] = 1
    circumstances: Circumstances
    code: str  # hash of the code whose passes were tried
    tokens: Annotated[int, Field(ge=1)]
    how: Literal["Measured", "Estimated"]
    detail: str  # for people, with numbers
    cost: dict[str, Milliseconds]  # fields of `CostModel` in camelCase, as `multigraft plan --cost` takes them

    def build_cost(self) -> CostModel:
        """Build the cost model."""
        times: dict[str, Any] = {_COST_FIELDS[name]: value for name, value in self.cost.items() if name in _COST_FIELDS}
        return replace(CostModel(), **times)


_COST_FIELDS = {to_camel(f.name): f.name for f in fields(CostModel) if f.name != "stage_shares"}


def write_cost(cost: CostModel) -> dict[str, float]:
    """Give the times of a cost model by their camelCase names."""
    values = asdict(cost)
    return {name: float(values[field]) for name, field in _COST_FIELDS.items()}


def load_record(path: Path) -> CapacityRecord | None:
    """Load a record; None if there is none.

    Raises:
        ValueError: If what is there cannot be read or is no record; says why.
    """
    try:
        return CapacityRecord.decode(read_small_file(path, max_bytes=MAX_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ValueError(str(error)) from error


def save_record(record: CapacityRecord, path: Path) -> None:
    """Write the record whole or not at all; makes the folder. Raises OSError as the system says."""
    make_root(path.parent)
    replace_file(path, record.encode())


def cache_path(cache_dir: Path, circumstances: Circumstances, code: str) -> Path:
    """Name the file of the cache that a measurement under these circumstances is kept in."""
    digest = hashlib.sha256(circumstances.encode() + code.encode()).hexdigest()
    return cache_dir / CACHE_FOLDER / f"{digest[:32]}.json"


@cache
def hash_code() -> str:
    """Give a hash of whatever decides how much memory and time a pass takes: our code for it, and the libraries."""
    digest = hashlib.sha256(json.dumps([_version(library) for library in _LIBRARIES]).encode())
    trainer, kernels = (Path(package.__path__[0]) for package in (multigraft_trainer, multigraft_kernels))
    for folder in (trainer / "adapters", trainer / "backends", trainer / "capacity", kernels):
        for source in sorted(folder.rglob("*.py")):
            digest.update(source.relative_to(folder).as_posix().encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:  # triton has no wheels for every machine
        return "none"
