"""The JSON of checkpoints: what state.json, manifest.json and boundary files say. Read strictly, never a pickle."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

FORMAT = 1

Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Record(BaseModel):
    """A JSON object with camelCase keys, no unknown keys, no coercion, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        ser_json_inf_nan="null",
    )

    def encode(self) -> bytes:
        """Give the file's bytes: same record, same bytes; NaN in a free-form part becomes null, as JSON has none."""
        data = self.model_dump(mode="json", by_alias=True)
        return (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a record.

        Raises:
            ValueError: If it is no JSON, of another format version, or not exactly this record; says which field.
        """
        found = parse_json(data)
        if isinstance(found, dict) and isinstance(found.get("format"), int) and found["format"] > FORMAT:
            raise NewerFormatError(f"format {found['format']}, this version reads {FORMAT}")
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def parse_json(data: bytes) -> Any:
    """Read JSON of any origin.

    Raises:
        ValueError: If it is none.
    """
    try:
        return json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"is no JSON: {error}") from error


class NewerFormatError(ValueError):
    """A record written by a newer version of multigraft: nothing is wrong with it, but we cannot read it."""


class FileEntry(Record):
    """One file of a checkpoint."""

    sha256: Sha256
    num_bytes: Count


class Manifest(Record):
    """manifest.json: every file of a checkpoint with its hash. Other files in the folder are never opened."""

    format: Literal[1] = 1
    files: dict[str, FileEntry]


class CheckpointState(Record):
    """state.json: everything of a job's state that is no tensor."""

    format: Literal[1] = 1
    code_version: str
    job: str  # namespace/name
    step: Count  # global batches consumed; the schedule's position
    total_steps: Count
    draws: Count  # position in the job's endless sample order; epoch and place in it follow from the row count
    updates: Count  # applied steps; AdamW's bias-correction count
    nonfinite_in_row: Count
    skipped_nonfinite: Count
    skipped_no_tokens: Count
    supervised_tokens: Count
    peak_learning_rate: float
    seed: Count  # with step, draw, layer and position it is the key of every random number of the job
    spec: dict[str, Any]  # training_spec.build_training_spec
    spec_hash: Sha256
    plan_hash: str | None  # the plan that ran up to here
    summary: dict[str, Any]  # the engine's own: losses, tokens, seconds


class CheckpointRef(Record):
    """Names one checkpoint of one job, by content."""

    job: str
    step: Count
    manifest_sha256: Sha256

    @property
    def folder_name(self) -> str:
        """Give the folder's name below the job's folder."""
        return f"checkpoint-{self.step}"


class Boundary(Record):
    """boundary-<number>.json: the whole pool between two plans."""

    format: Literal[1] = 1
    code_version: str
    number: Count
    running: dict[str, CheckpointRef]  # by job
    ended: dict[str, dict[str, Any]]  # result of each finished or failed job


def code_version() -> str:
    """Give the version of the installed distribution, for the record only."""
    try:
        return version("multigraft")
    except PackageNotFoundError:
        return "unknown"
