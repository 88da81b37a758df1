"""Plan the jobs of a pool as the engine would, horizon by horizon, from lengths alone, and simulate what comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from multigraft.api.adapter_job import AdapterJob
from multigraft.planner.cost import CostModel
from multigraft.planner.fair_share import JobShare, settle_horizon, share_horizon
from multigraft.planner.plan import JobWork, Microbatch, Outcome, Plan, PlanLimits
from multigraft.planner.rolling import extend_plan
from multigraft.planner.sample_order import SampleOrder
from multigraft.planner.simulate import Timeline, simulate
from multigraft.planner.solver_pool import SolverPool


@dataclass(frozen=True)
class DryRunOptions:
    """How to plan."""

    horizon_global_batches: int
    num_slots: int
    cost: CostModel = field(default_factory=CostModel)
    solver_timeout_seconds: float = 0
    max_horizons: int = 100  # what comes after is estimated from them


@dataclass(frozen=True)
class JobForecast:
    """What one job has to expect."""

    job: str
    num_samples: int
    total_steps: int
    planned_steps: int  # within the horizons that were planned
    num_tokens: int  # of the planned steps
    end_seconds: float  # from the start of the run; estimated if not all steps were planned

    @property
    def is_estimated(self) -> bool:
        """Say whether the end lies behind the planned horizons."""
        return self.planned_steps < self.total_steps


@dataclass(frozen=True)
class DryRun:
    """The plans of a run on one machine, one after the other, and their simulation."""

    limits: PlanLimits
    plans: tuple[Plan, ...]
    timeline: Timeline
    jobs: tuple[JobForecast, ...]

    @property
    def microbatches(self) -> tuple[Microbatch, ...]:
        """Give all microbatches in execution order."""
        return tuple(microbatch for plan in self.plans for microbatch in plan.microbatches)

    @property
    def num_microbatches(self) -> int:
        """Count microbatches that are not no-ops."""
        return sum(plan.num_microbatches for plan in self.plans)

    @property
    def num_no_ops(self) -> int:
        """Count no-ops."""
        return sum(plan.num_no_ops for plan in self.plans)

    @property
    def lower_bound(self) -> int:
        """Give the microbatches that any plans of the same horizons need."""
        return sum(plan.lower_bound for plan in self.plans)

    @property
    def num_tokens(self) -> int:
        """Count real tokens."""
        return sum(microbatch.num_tokens for microbatch in self.microbatches)

    @property
    def padding_share(self) -> float:
        """Give the share of padding to tiles in the tokens that run."""
        padded = sum(microbatch.padded_tokens(self.limits.tile_tokens) for microbatch in self.microbatches)
        return 1 - self.num_tokens / padded if padded else 0.0

    @property
    def fill(self) -> float:
        """Give the share of the capacity that real tokens fill, over microbatches that are not no-ops."""
        return self.num_tokens / (self.num_microbatches * self.limits.token_capacity) if self.num_microbatches else 0.0

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """Count the plans by how they were found."""
        return dict(Counter(plan.outcome for plan in self.plans))

    @property
    def gap(self) -> float:
        """Give how far the microbatches are above their bound, as a share of it."""
        return self.num_microbatches / self.lower_bound - 1 if self.lower_bound else 0.0

    @property
    def seconds(self) -> float:
        """Give the simulated time of the planned horizons."""
        return self.timeline.makespan_ms / 1000


def run_dry(
    jobs: Sequence[AdapterJob],
    lengths: Mapping[str, Sequence[int]],
    limits: PlanLimits,
    options: DryRunOptions,
    *,
    solver: SolverPool | None = None,
) -> DryRun:
    """Plan and simulate; jobs join when a slot is free, higher priority first, and end at plan boundaries.

    Args:
        jobs: Jobs in order of arrival.
        lengths: Tokens of each sample, by job key; a sample longer than the job's maxSeqLength counts as that long.
        limits: What the machine takes.
        options: How to plan.
        solver: Solver processes; None: greedy only.

    Raises:
        ValueError: If a sample is longer than a microbatch.
    """
    states = [_JobState.of(job, lengths[job.key]) for job in jobs]
    waiting = sorted(states, key=lambda state: -state.priority)
    active: list[_JobState] = []
    plans: list[Plan] = []
    tail: list[Microbatch] = []
    while len(plans) < options.max_horizons:
        active = [state for state in active if state.next_step < state.total_steps]
        while waiting and len(active) < options.num_slots:
            active.append(waiting.pop(0))
        if not active:
            break
        shares = [state.build_share(limits.tile_tokens) for state in active]
        granted = share_horizon(shares, limits, options.horizon_global_batches)
        lags = settle_horizon(shares, granted)
        work = [state.take(granted[state.key], lags[state.key]) for state in active]
        plan = extend_plan(
            tail,
            work,
            limits,
            solver_timeout_seconds=options.solver_timeout_seconds,
            cost=options.cost,
            solver=solver,
        )
        plans.append(plan)
        tail = [*tail, *plan.microbatches][-limits.num_stages * limits.num_replicas :]
    whole = Plan(limits, tuple(microbatch for plan in plans for microbatch in plan.microbatches))
    timeline = simulate(whole, options.cost)
    return DryRun(limits, tuple(plans), timeline, _forecast(states, whole, timeline))


@dataclass
class _JobState:
    key: str
    priority: int
    order: SampleOrder
    lengths: list[int]
    total_steps: int
    next_step: int = 0
    lag_tokens: float = 0.0

    @classmethod
    def of(cls, job: AdapterJob, lengths: Sequence[int]) -> _JobState:
        training = job.spec.training
        order = SampleOrder(training.seed, len(lengths), training.global_batch_size)
        total = order.count_steps(max_steps=training.max_steps, num_train_epochs=training.num_train_epochs)
        cut = [min(length, training.max_seq_length) for length in lengths]
        return cls(job.key, job.spec.priority, order, cut, total)

    def build_share(self, tile_tokens: int) -> JobShare:
        mean = -(-sum(self.lengths) // self.order.steps_per_epoch)
        step_tokens = -(-mean // tile_tokens) * tile_tokens
        return JobShare(self.key, step_tokens, self.total_steps - self.next_step, self.priority, self.lag_tokens)

    def take(self, num_batches: int, lag_tokens: float) -> JobWork:
        """Give the next global batches; `lag_tokens` is what the job is behind its neighbours after them."""
        steps = range(self.next_step, self.next_step + num_batches)
        self.next_step += num_batches
        self.lag_tokens = lag_tokens
        batches = tuple(self.order.build_global_batch(step, self.lengths) for step in steps)
        return JobWork(self.key, batches, self.priority)


def _forecast(states: Sequence[_JobState], whole: Plan, timeline: Timeline) -> tuple[JobForecast, ...]:
    tokens: Counter[str] = Counter()
    spans: dict[str, tuple[float, float]] = {}
    backward_ends = np.asarray(timeline.end_ms)[1].max(axis=0, initial=0.0) if whole.microbatches else np.zeros(0)
    for position, microbatch in enumerate(whole.microbatches):
        for segment in microbatch.segments:
            tokens[segment.job] += segment.num_tokens
            end = float(backward_ends[position])
            first, last = spans.get(segment.job, (float(timeline.start_ms[0, 0, position]), end))
            spans[segment.job] = (first, max(last, end))
    return tuple(_forecast_job(state, tokens[state.key], spans.get(state.key), timeline) for state in states)


def _forecast_job(
    state: _JobState, num_tokens: int, span: tuple[float, float] | None, timeline: Timeline
) -> JobForecast:
    forecast = JobForecast(
        state.key, state.order.num_samples, state.total_steps, state.next_step, num_tokens, timeline.makespan_ms / 1000
    )
    if span is None:
        return replace(forecast, end_seconds=float("inf"))
    step_ms = (span[1] - span[0]) / state.next_step
    return replace(forecast, end_seconds=(span[1] + step_ms * (state.total_steps - state.next_step)) / 1000)
