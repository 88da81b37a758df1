"""What a run leaves behind as data: `result.json`, the one source of the end table, the pictures and the report.

Knows nothing of training or of drawing. Numbers that are not finite become null: a bare NaN is not JSON, and 0 would
be a lie.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel

from multigraft.planner.plan import Plan
from multigraft_trainer.report.whole_file import write_whole

SCHEMA_VERSION = 1
MAX_HORIZONS = 8  # horizons kept for the plan picture; a long run has thousands


class JobState(StrEnum):
    """Where a job stood when the run ended."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"  # `spec.suspend` is true
    PENDING = "Pending"  # never got a slot
    STOPPED = "Stopped"  # the run ended first (--steps, SIGTERM); it can be resumed


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step of one job."""

    step: int  # 1-based: the number of steps taken once this one is done
    loss: float | None  # mean over the supervised tokens of the global batch, in nats; None: not finite
    learning_rate: float
    grad_norm: float | None  # L2 norm before clipping; None: not finite
    num_tokens: int
    num_supervised_tokens: int
    seconds: float  # since the run started
    skipped: bool = False  # not finite, weights left as they were


@dataclass(frozen=True)
class RowAccount:
    """Every row of the dataset: read = trained + dropped."""

    num_read: int
    num_trained: int
    num_truncated: int = 0
    num_dropped_by_code: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class JobResult:
    """What became of one AdapterJob."""

    job: str  # namespace/name
    state: JobState
    rank: int
    reason: str = ""  # a `Reason`; empty for success
    message: str = ""
    steps: int = 0
    total_steps: int | None = None  # None: the dataset could not be read
    num_tokens: int = 0  # real tokens trained, padding not counted
    num_supervised_tokens: int = 0
    num_skipped_steps: int = 0
    heldout_loss_before: float | None = None  # mean in nats per supervised token; None: no held-out rows
    heldout_loss_after: float | None = None
    rows: RowAccount | None = None
    adapter_path: str | None = None
    checkpoint_path: str | None = None
    seconds: float = 0.0  # from joining the shared base to leaving it
    history: tuple[StepRecord, ...] = ()
    adapter_sha256: str | None = None  # of adapter_model.safetensors
    adapter_bytes: int | None = None  # size of the same
    uid: str | None = None  # of the API server's object; None in a local run
    training_spec: Mapping[str, Any] | None = None  # what decided the weights, rows included; None: no row was read

    @property
    def identity(self) -> str:
        """`namespace/name` or `namespace/name/uid`: what checkpoints and results are kept under."""
        return self.job if self.uid is None else f"{self.job}/{self.uid}"

    def to_json(self) -> dict[str, Any]:
        """Give the result as JSON data, as it stands in result.json."""
        data: dict[str, Any] = _to_data(self)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobResult:
        """Read what `to_json` gave; keys that this version does not know are left out."""
        return _read_job(data)

    @property
    def heldout_change(self) -> float | None:
        """Give after - before in nats; below 0 is better."""
        if self.heldout_loss_before is None or self.heldout_loss_after is None:
            return None
        return self.heldout_loss_after - self.heldout_loss_before


@dataclass(frozen=True)
class SegmentShape:
    """How many tokens one job has in a microbatch."""

    job: str
    step: int
    num_tokens: int


@dataclass(frozen=True)
class HorizonResult:
    """One executed plan, without sample ids; an empty microbatch is a no-op."""

    plan_hash: str
    outcome: str
    lower_bound: int
    token_capacity: int
    microbatches: tuple[tuple[SegmentShape, ...], ...]

    @classmethod
    def from_plan(cls, plan: Plan) -> HorizonResult:
        """Keep the shape of a plan."""
        return cls(
            plan_hash=plan.hash,
            outcome=plan.outcome.value,
            lower_bound=plan.lower_bound,
            token_capacity=plan.limits.token_capacity,
            microbatches=tuple(
                tuple(SegmentShape(s.job, s.step, s.num_tokens) for s in microbatch.segments)
                for microbatch in plan.microbatches
            ),
        )


@dataclass(frozen=True)
class PoolResult:
    """The shared base and how well it was used."""

    pool: str  # namespace/name
    base_model: str  # storageUri
    dtype: str
    device: str
    token_capacity: int | None  # None: Auto, and the run ended before it was found
    capacity_source: str = "Spec"  # a `CapacitySource`
    capacity_detail: str = ""  # how it was found, with numbers; empty for Spec
    num_parameters: int = 0
    base_bytes: int = 0  # memory of the frozen weights, held once
    num_plans: int = 0
    num_microbatches: int = 0  # with tokens in them
    num_noop_microbatches: int = 0
    num_tokens: int = 0  # real tokens, all jobs
    num_padding_tokens: int = 0
    train_seconds: float = 0.0  # microbatches and steps; no import, loading or evaluation
    solver_seconds: float = 0.0
    horizons: tuple[HorizonResult, ...] = ()  # the first MAX_HORIZONS

    @property
    def fill(self) -> float | None:
        """Give the share of the microbatches' capacity that real tokens filled."""
        room = self.num_microbatches * (self.token_capacity or 0)
        return self.num_tokens / room if room else None

    @property
    def tokens_per_second(self) -> float | None:
        """Give real tokens trained per second, all jobs together."""
        return self.num_tokens / self.train_seconds if self.train_seconds else None


@dataclass(frozen=True)
class RunResult:
    """Everything that one `multigraft run` did."""

    pool: PoolResult
    jobs: tuple[JobResult, ...]
    started_at: str  # RFC 3339, UTC
    seconds: float  # the whole run
    peak_rss_bytes: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what the user should know, such as fields that a local run does not use

    @property
    def failed_jobs(self) -> tuple[JobResult, ...]:
        """Give the jobs for which the command exits non-zero."""
        return tuple(job for job in self.jobs if job.state is JobState.FAILED)

    def to_json(self) -> dict[str, Any]:
        """Give the result as JSON data: camelCase keys, null for what is unknown or not finite."""
        data: dict[str, Any] = _to_data(self)
        data["pool"] |= {"fill": _finite(self.pool.fill), "tokensPerSecond": _finite(self.pool.tokens_per_second)}
        return {"schemaVersion": SCHEMA_VERSION, **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunResult:
        """Read a result.

        Raises:
            ValueError: If the schema version is not the one this version writes.
        """
        if data.get("schemaVersion") != SCHEMA_VERSION:
            raise ValueError(f"schemaVersion: got {data.get('schemaVersion')!r}, this version reads {SCHEMA_VERSION}")
        return cls(
            pool=_read_pool(data["pool"]),
            jobs=tuple(_read_job(job) for job in data["jobs"]),
            notes=tuple(data.get("notes", ())),
            **_plain(cls, data, skip={"pool", "jobs", "notes"}),
        )


def save_result(result: RunResult, path: Path) -> None:
    """Write `result.json` whole or not at all."""
    write_whole(path, (json.dumps(result.to_json(), indent=1, allow_nan=False) + "\n").encode())


def load_result(path: Path) -> RunResult:
    """Read a `result.json`; raises ValueError for another schema version or text that is not JSON."""
    return RunResult.from_json(json.loads(path.read_text(encoding="utf-8")))


def _to_data(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, float):
        return _finite(value)
    if is_dataclass(value):
        return {to_camel(f.name): _to_data(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _to_data(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_to_data(item) for item in value]
    return value


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _plain(cls: type, data: Mapping[str, Any], skip: frozenset[str] | set[str] = frozenset()) -> dict[str, Any]:
    """Pick the fields of a dataclass from camelCase data; keys that this version does not know are left out."""
    names = [f.name for f in fields(cls) if f.name not in skip]
    return {name: data[to_camel(name)] for name in names if to_camel(name) in data}


def _read_job(data: Mapping[str, Any]) -> JobResult:
    rows = data.get("rows")
    return JobResult(
        state=JobState(data["state"]),
        rows=RowAccount(**_plain(RowAccount, rows)) if rows is not None else None,
        history=tuple(StepRecord(**_plain(StepRecord, record)) for record in data["history"]),
        **_plain(JobResult, data, skip={"state", "rows", "history"}),
    )


def _read_pool(data: Mapping[str, Any]) -> PoolResult:
    return PoolResult(
        horizons=tuple(_read_horizon(horizon) for horizon in data["horizons"]),
        **_plain(PoolResult, data, skip={"horizons"}),
    )


def _read_horizon(data: Mapping[str, Any]) -> HorizonResult:
    microbatches = tuple(
        tuple(SegmentShape(**_plain(SegmentShape, segment)) for segment in microbatch)
        for microbatch in data["microbatches"]
    )
    return HorizonResult(microbatches=microbatches, **_plain(HorizonResult, data, skip={"microbatches"}))
