"""The engine: trains the jobs of one pool together, plan by plan.

One round: admit waiting jobs into free slots -> list the next global batches of each -> plan -> verify -> run the
microbatches; each job steps right after the last backward of its own global batch -> retire what ended -> checkpoint.
Jobs join, leave, end and are saved at plan boundaries only, where no global batch is half done; so a boundary is a
state from which the same jobs go on bit for bit. Where a job is to join or leave, or ended while another waits for its
slot, the boundary comes early: global batches that have begun are finished, the rest of the plan is void.

A job that fails is left out of the rest of the plan; its neighbours run on. The engine reads no manifest and opens no
socket: whoever drives it submits prepared jobs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.base_model_pool import BaseModelPoolSpec
from multigraft.api.reasons import Reason, RefusalError
from multigraft.planner.cost import CostModel
from multigraft.planner.fair_share import settle_horizon
from multigraft.planner.plan import JobWork, Microbatch, Plan, PlanLimits, Segment
from multigraft.planner.plan_ahead import PlanAhead
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.backends.backend import Backend
from multigraft_trainer.backends.packed import PackedMicrobatch
from multigraft_trainer.capacity.pool_capacity import PoolCapacity
from multigraft_trainer.engine.job_end import build_refused, build_result, finish_job
from multigraft_trainer.engine.job_run import JobRun, PreparedJob
from multigraft_trainer.engine.job_start import start_job
from multigraft_trainer.engine.next_work import WorkRules, list_shares, list_work, list_work_ahead
from multigraft_trainer.engine.observer import EngineObserver, MicrobatchRecord
from multigraft_trainer.engine.pack_microbatch import pack_microbatch
from multigraft_trainer.engine.pool_state import PoolState
from multigraft_trainer.report.results import JobResult, JobState
from multigraft_trainer.unexpected import explain_unexpected


@dataclass(frozen=True)
class EngineOptions:
    """What a pool's spec says of planning and saving."""

    limits: PlanLimits
    horizon_global_batches: int
    solver_timeout_seconds: float
    checkpoint_interval_steps: int
    step_limit: int | None = None  # every job stops here, resumable; its schedule is that of the whole run
    cost: CostModel | None = None  # times by which plans are compared; None: the planner's own

    @property
    def work_rules(self) -> WorkRules:
        """Give what the size of a plan follows from."""
        return WorkRules(self.limits, self.horizon_global_batches, self.step_limit)

    @classmethod
    def from_spec(
        cls, spec: BaseModelPoolSpec, capacity: PoolCapacity, *, step_limit: int | None = None
    ) -> EngineOptions:
        """Read the options of a pool whose capacity is known."""
        return cls(
            limits=PlanLimits(token_capacity=capacity.tokens),
            horizon_global_batches=spec.scheduling.horizon_global_batches,
            solver_timeout_seconds=spec.scheduling.solver_timeout_seconds,
            checkpoint_interval_steps=spec.checkpoint.interval_steps,
            step_limit=step_limit,
            cost=capacity.cost,
        )


class Engine:
    """Trains many jobs on one backend. Not thread-safe, but `request_stop` may be called from a signal handler."""

    def __init__(
        self,
        backend: Backend,
        slots: SlotPool,
        state: PoolState,
        options: EngineOptions,
        observer: EngineObserver,
        *,
        on_end: Callable[[JobResult], None],
        wants_boundary: Callable[[], bool] = lambda: False,
    ) -> None:
        self._backend = backend
        self._slots = slots
        self._state = state
        self._options = options
        self._observer = observer
        self._on_end = on_end
        self._wants_boundary = wants_boundary  # asked before every microbatch: is a job to join or leave?
        self._waiting: list[PreparedJob] = []
        self._running: dict[str, JobRun] = {}
        self._leaving: set[str] = set()
        self._is_stopping = False
        self._packed_ahead: tuple[list[Segment], PackedMicrobatch] | None = None
        self._is_cut = False  # only global batches that have begun still run
        self._ahead = PlanAhead(
            options.limits, solver_timeout_seconds=options.solver_timeout_seconds, cost=options.cost
        )
        self._started_at = time.monotonic()
        self.horizon = 0  # plans run by this process

    @property
    def running(self) -> tuple[JobRun, ...]:
        """Give the jobs that hold a slot, in order of joining."""
        return tuple(self._running.values())

    @property
    def waiting(self) -> tuple[PreparedJob, ...]:
        """Give the jobs that wait for a slot, next first."""
        return tuple(self._waiting)

    def submit(self, job: PreparedJob) -> None:
        """Add a job; it joins at the next plan boundary with a free slot, higher priority first.

        Raises:
            ValueError: If the job is here already.
        """
        if job.key in self._running or any(job.key == waiting.key for waiting in self._waiting):
            raise ValueError(f"job {job.key} is here already")
        self._waiting.append(job)
        self._sort_waiting()

    def remove(self, key: str) -> None:
        """Let a job leave at the next plan boundary, checkpointed; a waiting one leaves at once.

        Raises:
            KeyError: If there is no such job.
        """
        waiting = [job for job in self._waiting if job.key == key]
        if waiting:
            self._waiting.remove(waiting[0])
        elif key in self._running:
            self._leaving.add(key)
        else:
            raise KeyError(key)

    def update(self, job: AdapterJob) -> None:
        """Take over what may change of a job that is here: priority and deadline, from the next plan on.

        Raises:
            KeyError: If there is no such job.
        """
        run = self._running.get(job.key)
        if run is not None:
            run.prepared = replace(run.prepared, job=job)
            return
        index = next((at for at, waiting in enumerate(self._waiting) if waiting.key == job.key), None)
        if index is None:
            raise KeyError(job.key)
        self._waiting[index] = replace(self._waiting[index], job=job)
        self._sort_waiting()

    def request_stop(self) -> None:
        """Finish the global batches that have begun, checkpoint, and let `run` return."""
        self._is_stopping = True

    def run(self) -> None:
        """Run until no job is left or a stop was asked for."""
        with closing(self):
            while self.run_horizon():
                pass

    def close(self) -> None:
        """End the planning thread and its solver processes."""
        self._ahead.close()

    def run_horizon(self) -> bool:
        """Run one plan and the boundary after it; tells whether there is more to do."""
        if self._leaving:  # told to leave since the last boundary: no further plan for them
            self._retire()
        self._admit()
        if self._is_stopping or not self._running:
            self._retire()
            return False
        work = list_work(self.running, self._options.work_rules)
        if work:  # none if every job was restored at its last step
            self._run_plan(self._plan(work))
        self._retire()
        return bool(self._running or self._waiting) and not self._is_stopping

    def _sort_waiting(self) -> None:
        self._waiting.sort(key=lambda waiting: -waiting.job.spec.priority)  # stable: first come first within a priority

    def _admit(self) -> None:
        while self._waiting and self._slots.num_free and not self._is_stopping:
            prepared = self._waiting.pop(0)
            try:
                run = start_job(
                    prepared,
                    self._backend,
                    self._slots,
                    self._state,
                    self._observer,
                    token_capacity=self._options.limits.token_capacity,
                )
            except Exception as error:  # noqa: BLE001 (its own checkpoint or held-out rows; the others run on)
                self._report(build_refused(prepared, explain_unexpected(error, "starting the job")))
                continue
            self._running[run.key] = run
            self._observer.on_job(
                run.key,
                rank=prepared.options.rank,
                total_steps=run.optimizer.options.total_steps,
                steps=run.step,
            )

    def _plan(self, work: Sequence[JobWork]) -> Plan:
        plan = self._state.load_plan(work, self._options.limits)
        if plan is None:
            plan = self._ahead.take(work)
            try:
                self._state.save_plan(work, plan)
            except OSError as error:  # training need not stop for it: a resume would plan anew, equal to rounding
                self._observer.on_phase(f"the plan could not be written down: {error}")
        return plan

    def _run_plan(self, plan: Plan) -> None:
        self._observer.on_plan(self.horizon, plan)
        shares = list_shares(self.running, self._options.work_rules)
        steps_before = {run.key: run.step for run in self.running}
        next_work = list_work_ahead(self.running, self._options.work_rules)
        if next_work:
            self._ahead.start(next_work)
        self._is_cut = False
        for microbatch, following in itertools.zip_longest(plan.microbatches, plan.microbatches[1:]):
            self._is_cut = self._is_cut or self._is_stopping or self._wants_boundary() or self._has_slot_to_hand_on()
            self._run_microbatch(microbatch, following)
        self._packed_ahead = None  # slots change hands at the boundary
        lags = settle_horizon(shares, {run.key: run.step - steps_before[run.key] for run in self.running})
        for run in self.running:
            run.lag_tokens = lags.get(run.key, 0.0)
        self.horizon += 1

    def _has_slot_to_hand_on(self) -> bool:
        return bool(self._waiting) and any(run.failure or run.optimizer.finished for run in self.running)

    def _run_microbatch(self, microbatch: Microbatch, following: Microbatch | None) -> None:
        segments = [segment for segment in microbatch.segments if self._goes_on(segment)]
        if not segments:
            return
        started = time.monotonic()
        for segment in segments:
            self._running[segment.job].begin(segment.step)
        ahead, self._packed_ahead = self._packed_ahead, None
        packed = ahead[1] if ahead is not None and ahead[0] == segments else self._pack(segments)
        try:
            losses = self._backend.forward_backward(packed, meanwhile=lambda: self._look_ahead(following))
        except torch.OutOfMemoryError as error:
            self._fail_out_of_memory(segments, error)
            return
        self._observer.on_microbatch(
            MicrobatchRecord(
                tokens_by_job={segment.job: segment.num_tokens for segment in segments},
                padded_tokens=Microbatch(tuple(segments)).padded_tokens(self._options.limits.tile_tokens),
                token_capacity=self._options.limits.token_capacity,
                seconds=time.monotonic() - started,
            )
        )
        for segment, loss_sum in zip(segments, losses, strict=True):
            self._close_segment(segment, loss_sum)

    def _look_ahead(self, following: Microbatch | None) -> None:
        """Pack what comes next while the device works; void if a job fails or a boundary is wanted until then."""
        segments = [segment for segment in following.segments if self._goes_on(segment)] if following else []
        if segments:
            packed = self._pack(segments)
            self._backend.prepare(packed)
            self._packed_ahead = segments, packed

    def _pack(self, segments: Sequence[Segment]) -> PackedMicrobatch:
        return pack_microbatch([self._running[segment.job].look_up(segment) for segment in segments])

    def _goes_on(self, segment: Segment) -> bool:
        run = self._running[segment.job]
        return run.failure is None and (not self._is_cut or run.has_begun(segment.step))

    def _close_segment(self, segment: Segment, loss_sum: float) -> None:
        run = self._running[segment.job]
        record = run.close_segment(segment, loss_sum, run_seconds=time.monotonic() - self._started_at)
        if record is not None:
            self._observer.on_step(run.key, record)
            run.check_deadline()

    def _fail_out_of_memory(self, segments: Sequence[Segment], error: Exception) -> None:
        # The gradients of these jobs are half added and cannot be told apart; those of all others are whole.
        tokens = sum(segment.num_tokens for segment in segments)
        for segment in segments:
            self._running[segment.job].failure = RefusalError(
                Reason.OUT_OF_MEMORY,
                f"a microbatch of {tokens} tokens does not fit; lower spec.batching.maxTokensPerMicrobatch of the "
                f"pool or set gradientCheckpointing ({str(error).splitlines()[0][:120]})",
            )

    def _retire(self) -> None:
        ended = [result for run in self.running if (result := self._finish(run)) is not None]
        staying = [run for run in self.running if run.key not in {result.job for result in ended}]
        self._checkpoint(staying, ended)
        for result in ended:
            self._end(result)
        for run in staying:  # a checkpoint that could not be written may just have failed one
            if run.failure is not None:
                self._end(build_result(run, self._state, JobState.FAILED, error=run.failure))
            elif run.key in self._leaving or self._is_stopping or self._is_parked(run):
                self._end(build_result(run, self._state, JobState.STOPPED))

    def _finish(self, run: JobRun) -> JobResult | None:
        run.check_deadline()
        if run.failure is not None:
            return build_result(run, self._state, JobState.FAILED, error=run.failure)
        if not run.optimizer.finished:
            return None
        capacity = self._options.limits.token_capacity
        return finish_job(run, self._backend, self._slots, self._state, self._observer, token_capacity=capacity)

    def _checkpoint(self, staying: Sequence[JobRun], ended: Sequence[JobResult]) -> None:
        interval = self._options.checkpoint_interval_steps
        is_due = any(
            run.step - run.saved_step >= interval or run.key in self._leaving or self._is_parked(run) for run in staying
        )
        if not (is_due or ended or (self._is_stopping and staying)):
            return
        try:
            seconds = self._state.save(staying, ended, self._slots)
        except RefusalError as error:
            for run in staying:
                self._observer.on_note(run.key, f"goes on from its last checkpoint only if this ends: {error}")
            return
        self._observer.on_checkpoint(self.horizon, seconds=seconds)

    def _is_parked(self, run: JobRun) -> bool:
        limit = self._options.step_limit
        return limit is not None and run.step >= limit

    def _end(self, result: JobResult) -> None:
        run = self._running.pop(result.job)
        self._leaving.discard(run.key)
        self._slots.release(run.slot)
        self._report(result)

    def _report(self, result: JobResult) -> None:
        self._observer.on_end(result.job, result.state, result.message)
        self._on_end(result)
