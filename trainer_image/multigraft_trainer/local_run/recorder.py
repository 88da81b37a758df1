"""Sums up a run while it goes on, for result.json."""

from __future__ import annotations

from dataclasses import dataclass, field

from multigraft.planner.plan import Plan
from multigraft_trainer.engine.observer import EngineObserver, MicrobatchRecord
from multigraft_trainer.report.results import MAX_HORIZONS, HorizonResult, PoolResult


@dataclass(frozen=True)
class PoolFacts:
    """What is known of a pool before it trains."""

    pool: str
    base_model: str
    dtype: str
    device: str
    token_capacity: int | None
    num_parameters: int
    base_bytes: int
    capacity_source: str = "Spec"
    capacity_detail: str = ""


@dataclass
class RunRecorder(EngineObserver):
    """Counts what the engine ran."""

    num_plans: int = 0
    num_microbatches: int = 0
    num_noop_microbatches: int = 0
    num_tokens: int = 0
    num_padding_tokens: int = 0
    train_seconds: float = 0.0
    solver_seconds: float = 0.0
    horizons: list[HorizonResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def on_note(self, job: str, text: str) -> None:
        self.notes.append(f"{job}: {text}")

    def on_plan(self, horizon: int, plan: Plan) -> None:  # noqa: ARG002 (the protocol's name)
        self.num_plans += 1
        self.solver_seconds += plan.solver_seconds
        if len(self.horizons) < MAX_HORIZONS:
            self.horizons.append(HorizonResult.from_plan(plan))

    def on_microbatch(self, record: MicrobatchRecord) -> None:
        self.num_microbatches += bool(record.num_tokens)
        self.num_noop_microbatches += not record.num_tokens
        self.num_tokens += record.num_tokens
        self.num_padding_tokens += record.padded_tokens - record.num_tokens
        self.train_seconds += record.seconds

    def build_result(self, facts: PoolFacts) -> PoolResult:
        """Build the pool's part of the result."""
        return PoolResult(
            pool=facts.pool,
            base_model=facts.base_model,
            dtype=facts.dtype,
            device=facts.device,
            token_capacity=facts.token_capacity,
            capacity_source=facts.capacity_source,
            capacity_detail=facts.capacity_detail,
            num_parameters=facts.num_parameters,
            base_bytes=facts.base_bytes,
            num_plans=self.num_plans,
            num_microbatches=self.num_microbatches,
            num_noop_microbatches=self.num_noop_microbatches,
            num_tokens=self.num_tokens,
            num_padding_tokens=self.num_padding_tokens,
            train_seconds=self.train_seconds,
            solver_seconds=self.solver_seconds,
            horizons=tuple(self.horizons),
        )
