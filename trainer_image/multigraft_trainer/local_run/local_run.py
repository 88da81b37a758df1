"""`multigraft run`: the jobs of a directory on this machine, in one process, from the YAML that a cluster gets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.reasons import RefusalError
from multigraft.manifests.config_map import ConfigMap
from multigraft_trainer.admission.output_owners import refuse_taken_outputs
from multigraft_trainer.admission.prepare_job import Intake, IntakeContext, prepare_job
from multigraft_trainer.admission.shared_base import SharedBase, choose_device, name_device, open_shared_base
from multigraft_trainer.capacity.find_capacity import CapacityPlaces, find_capacity
from multigraft_trainer.capacity.pool_capacity import CapacitySource, PoolCapacity
from multigraft_trainer.engine.engine import Engine, EngineOptions
from multigraft_trainer.engine.job_end import build_result
from multigraft_trainer.engine.metrics import TrainerMetrics
from multigraft_trainer.engine.observer import EngineObserver, Observers, ProgressObserver
from multigraft_trainer.engine.pool_state import PoolPaths, PoolState
from multigraft_trainer.local_run.earlier_results import review_earlier
from multigraft_trainer.local_run.error_log import write_error_log
from multigraft_trainer.local_run.metrics_port import METRICS_HOST
from multigraft_trainer.local_run.outcomes import Outcomes
from multigraft_trainer.local_run.passed_over import note_job, note_pool
from multigraft_trainer.local_run.pool_selection import PoolSelection
from multigraft_trainer.local_run.recorder import PoolFacts, RunRecorder
from multigraft_trainer.local_run.run_folder import RunFolder, hold_run_folder, open_checkpoints
from multigraft_trainer.local_run.stop_signals import StopRequested, StopSignals
from multigraft_trainer.local_run.surroundings import list_versions, measure_peak_rss
from multigraft_trainer.report.html_report import write_report
from multigraft_trainer.report.progress import Progress
from multigraft_trainer.report.results import JobState, PoolResult, RunResult, save_result
from multigraft_trainer.unexpected import explain_unexpected


@dataclass(frozen=True)
class RunOptions:
    """What the command line says."""

    directory: Path
    resume: bool = False
    step_limit: int | None = None
    metrics_port: int | None = None


@dataclass
class LocalRun:
    """One run of one pool; `run` does it all and gives the result that was written."""

    selection: PoolSelection
    config_maps: Mapping[str, ConfigMap]
    output: RunFolder
    options: RunOptions
    progress: Progress
    recorder: RunRecorder = field(default_factory=RunRecorder)
    facts: PoolFacts | None = None
    unwritten: list[str] = field(default_factory=list)  # what could not be written at the end, and why

    def __post_init__(self) -> None:
        self.pool = self.selection.pool
        self.outcomes = Outcomes(self.selection.jobs, self.progress)

    def run(self) -> RunResult:
        """Train, and write result.json, metrics.prom and the report whatever happened to jobs or to the run.

        Raises:
            RefusalError: INVALID_SPEC, if another run is at work in the folder; nothing is written then.
        """
        started, started_at = time.monotonic(), datetime.now(UTC)
        with hold_run_folder(self.output), StopSignals() as signals:
            self._run_pool(signals)
            with signals.shielded():
                self.progress.close()
                result = RunResult(
                    pool=self._build_pool_result(),
                    jobs=self.outcomes.collect(),
                    started_at=started_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
                    seconds=time.monotonic() - started,
                    peak_rss_bytes=measure_peak_rss(),
                    versions=list_versions(),
                    notes=tuple(self.recorder.notes),
                )
                self._save(result)
            self._draw(result)
        return result

    def _run_pool(self, signals: StopSignals) -> None:
        """Train; every job without a result afterwards gets one that says why."""
        try:
            self._train(signals)
        except StopRequested as stop:
            self.outcomes.stop_rest(f"{stop} ended the run before the job had begun")
        except RefusalError as error:
            self.outcomes.fail_rest(error)
        except Exception as error:  # noqa: BLE001 (whatever it is, the finished jobs' results must be written)
            write_error_log(self.output.error_log, "the run")
            self.outcomes.fail_rest(explain_unexpected(error, "the run"))

    def _train(self, signals: StopSignals) -> None:
        device = choose_device(self.pool)
        for note in (
            *self.selection.notes,
            *note_pool(self.pool, device=device.type, device_name=name_device(device)),
            *(note for job in self.selection.jobs for note in note_job(job)),
        ):
            self._note(note)
        self.progress.on_phase(f"loading {self.pool.spec.base_model.storage_uri}")
        checkpoints = open_checkpoints(self.output, self.pool, self.options.directory)
        base = open_shared_base(self.pool, self.options.directory, self.output.cache)
        state = self._open_state(checkpoints)
        capacity = self._find_capacity(base)
        self.facts = self._build_facts(base, capacity)
        metrics = self._open_metrics(base)
        metrics.on_capacity(capacity.tokens, capacity.source)
        engine = self._build_engine(base, state, metrics, capacity)
        try:
            for intake in self._prepare_jobs(self._build_context(base, checkpoints, capacity), state):
                for note in intake.notes:
                    self._note(f"{intake.prepared.key}: {note}")
                engine.submit(intake.prepared)
            self._run_engine(engine, state, signals)
        finally:
            with signals.shielded():
                self._write_metrics(metrics)

    def _open_state(self, checkpoints: Path) -> PoolState:
        paths = PoolPaths(checkpoints=checkpoints, plans=self.output.plans)
        state = PoolState(paths, keep_last=self.pool.spec.checkpoint.keep_last, resume=self.options.resume)
        for passed in state.passed_over:
            self._note(f"{passed.name} {passed.why}")
        return state

    def _find_capacity(self, base: SharedBase) -> PoolCapacity:
        places = CapacityPlaces(plans=self.output.plans, cache=self.output.cache)
        capacity = find_capacity(
            self.pool.spec,
            base,
            places,
            resume=self.options.resume,
            on_phase=self.progress.on_phase,
            on_note=self._note,
        )
        if capacity.source is not CapacitySource.SPEC:
            self._note(f"spec.batching.maxTokensPerMicrobatch Auto: {capacity}")
        return capacity

    def _open_metrics(self, base: SharedBase) -> TrainerMetrics:
        name = self.pool.metadata.name
        metrics = TrainerMetrics(name, num_stages=1, base_bytes=base.num_bytes, include_finished=True)
        if self.options.metrics_port is not None:
            try:
                port = metrics.serve(self.options.metrics_port, host=METRICS_HOST)
                self.progress.on_phase(f"metrics on http://localhost:{port}/metrics")
            except OSError as error:  # somebody took the port since the command line was read
                self._note(f"metrics are not served: {error}")
        return metrics

    def _build_engine(
        self, base: SharedBase, state: PoolState, metrics: TrainerMetrics, capacity: PoolCapacity
    ) -> Engine:
        observers: list[EngineObserver] = [ProgressObserver(self.progress), self.recorder, metrics]
        return Engine(
            base.backend,
            base.slots,
            state,
            EngineOptions.from_spec(self.pool.spec, capacity, step_limit=self.options.step_limit),
            Observers(observers),
            on_end=self.outcomes.book,
        )

    def _build_context(self, base: SharedBase, checkpoints: Path, capacity: PoolCapacity) -> IntakeContext:
        return IntakeContext(
            pool=self.pool,
            base=base,
            directory=self.options.directory,
            output_root=self.output.path,
            cache_dir=self.output.cache,
            config_maps=self.config_maps,
            private=(checkpoints, self.output.cache),
            measured_capacity=capacity.tokens,
        )

    def _prepare_jobs(self, context: IntakeContext, state: PoolState) -> Iterator[Intake]:
        """Give the jobs that can train; the others end here, each with its own reason."""
        taken = refuse_taken_outputs(self.selection.jobs, context, ended=state.ended)
        for job in self.selection.jobs:
            try:
                if job.key in taken:
                    raise taken[job.key]  # noqa: TRY301 (booked like every other refusal)
                intake = self._prepare_job(job, context, state)
            except Exception as error:  # noqa: BLE001 (one job's fault stays its own)
                refusal = explain_unexpected(error, "preparing the job")
                if refusal is not error:
                    write_error_log(self.output.error_log, job.key)
                self.outcomes.fail(job, refusal)
                continue
            if intake is not None:
                yield intake

    def _prepare_job(self, job: AdapterJob, context: IntakeContext, state: PoolState) -> Intake | None:
        """Prepare a job; None if it has a result already, or is not to run."""
        earlier = state.ended.get(job.key)
        if earlier is not None and not (job.spec.suspend and earlier.state is not JobState.SUCCEEDED):
            review = review_earlier(job, earlier, context)
            if review.note:
                self._note(f"{job.key}: {review.note}")
            if review.kept is not None:
                folder = state.job_folder(job.key)
                self.outcomes.book(replace(review.kept, checkpoint_path=str(folder) if folder.is_dir() else None))
                return None
        if job.spec.suspend:
            self.outcomes.suspend(job)
            return None
        state.forget(job.key)
        self.progress.on_phase(f"reading the rows of {job.key}")
        return prepare_job(job, context)

    def _run_engine(self, engine: Engine, state: PoolState, signals: StopSignals) -> None:
        self.progress.on_phase("training")
        try:
            with signals.hand_to(engine.request_stop):
                engine.run()
        except StopRequested as stop:
            text = f"a second {stop} ended the run at once; it goes on from its last checkpoint"
            for run in engine.running:
                self.outcomes.book(replace(build_result(run, state, JobState.STOPPED), message=text))
        except Exception as error:  # noqa: BLE001 (whatever it is, the finished jobs' results must be written)
            write_error_log(self.output.error_log, "training")
            refusal = explain_unexpected(error, "training")
            text = f"{refusal.message}; details are in {self.output.error_log}; checkpoints are kept"
            self.outcomes.fail_rest(RefusalError(refusal.reason, text))
        for waiting in engine.waiting:
            text = f"the run ended before one of {self.pool.spec.slots.max} slots was free"
            self.outcomes.leave_waiting(waiting, text)

    def _note(self, text: str) -> None:
        """Say it now, and keep it for result.json and the report."""
        self.recorder.notes.append(text)
        self.progress.on_note(text)

    def _write_metrics(self, metrics: TrainerMetrics) -> None:
        try:
            metrics.write_file(self.output.metrics)
        except OSError as error:
            self.unwritten.append(f"{self.output.metrics}: {error}")

    def _save(self, result: RunResult) -> None:
        try:
            save_result(result, self.output.result)
        except OSError as error:
            self.unwritten.append(f"{self.output.result}: {error}")

    def _draw(self, result: RunResult) -> None:
        """Write the report. The results are safe by now; pictures of them are not worth an error in their place."""
        try:
            write_report(result, self.output.path)
        except StopRequested as stop:
            self.unwritten.append(f"{self.output.path}: {stop} came before the report was drawn")
        except Exception as error:  # noqa: BLE001
            self.unwritten.append(f"{self.output.path}: no report: {type(error).__name__}: {str(error)[:200]}")

    def _build_facts(self, base: SharedBase | None, capacity: PoolCapacity | None) -> PoolFacts:
        spec = self.pool.spec
        return PoolFacts(
            pool=self.pool.key,
            base_model=spec.base_model.storage_uri,
            dtype=spec.base_model.dtype.value,
            device=str(base.backend.device if base else choose_device(self.pool)),
            token_capacity=capacity.tokens if capacity else spec.batching.given_capacity,
            capacity_source=(capacity.source if capacity else CapacitySource.SPEC).value,
            capacity_detail=capacity.detail if capacity else "",
            num_parameters=base.num_parameters if base else 0,
            base_bytes=base.num_bytes if base else 0,
        )

    def _build_pool_result(self) -> PoolResult:
        return self.recorder.build_result(self.facts or self._build_facts(None, None))
