"""`multigraft run`: the jobs of a directory on this machine, in one process, from the YAML that a cluster gets."""

from __future__ import annotations

import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.reasons import Reason, RefusalError
from multigraft.manifests.collection import Manifests
from multigraft_trainer.admission.prepare_job import Intake, IntakeContext, prepare_job
from multigraft_trainer.admission.shared_base import SharedBase, choose_device, open_shared_base
from multigraft_trainer.engine.engine import Engine, EngineOptions
from multigraft_trainer.engine.job_end import build_row_account
from multigraft_trainer.engine.metrics import TrainerMetrics
from multigraft_trainer.engine.observer import EngineObserver, Observers, ProgressObserver
from multigraft_trainer.engine.pool_state import PoolPaths, PoolState
from multigraft_trainer.local_run.earlier_results import review_earlier
from multigraft_trainer.local_run.recorder import PoolFacts, RunRecorder
from multigraft_trainer.local_run.run_folder import RunFolder, hold_run_folder
from multigraft_trainer.report.html_report import write_report
from multigraft_trainer.report.progress import Progress
from multigraft_trainer.report.results import JobResult, JobState, PoolResult, RunResult, save_result
from multigraft_trainer.storage.roots import Location, check_distinct_outputs

ERROR_LOG = "error.log"


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

    pool: BaseModelPool
    manifests: Manifests
    output: RunFolder
    options: RunOptions
    progress: Progress
    ended: dict[str, JobResult] = field(default_factory=dict)
    recorder: RunRecorder = field(default_factory=RunRecorder)
    facts: PoolFacts | None = None

    def run(self) -> RunResult:
        """Train, and write result.json, metrics.prom and the report whatever happened to single jobs."""
        started, started_at = time.monotonic(), datetime.now(UTC)
        try:
            with hold_run_folder(self.output):
                self._run_pool()
        finally:
            self.progress.close()
        result = RunResult(
            pool=self._build_pool_result(),
            jobs=tuple(self._result_of(job) for job in self.manifests.jobs),
            started_at=started_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            seconds=time.monotonic() - started,
            peak_rss_bytes=_measure_peak_rss(),
            versions=_list_versions(),
        )
        save_result(result, self.output.result)
        try:
            write_report(result, self.output.path)
        except OSError as error:  # the results are safe; pictures of them are not worth an error in their place
            self.progress.on_phase(f"the report could not be written: {error}")
        return result

    def _run_pool(self) -> None:
        self.progress.on_phase(f"loading {self.pool.spec.base_model.storage_uri}")
        try:
            base = open_shared_base(self.pool, self.options.directory, self.output.cache)
            state = self._open_state()
        except RefusalError as error:
            for job in self.manifests.jobs:
                self._fail(job, error)
            return
        self.facts = self._build_facts(base)
        metrics = TrainerMetrics(
            self.pool.metadata.name, num_stages=1, base_bytes=base.num_bytes, include_finished=True
        )
        if self.options.metrics_port is not None:
            port = metrics.serve(self.options.metrics_port)
            self.progress.on_phase(f"metrics on http://localhost:{port}/metrics")
        engine = self._build_engine(base, state, metrics)
        for intake in self._prepare_jobs(base, state):
            for note in (*_note_secrets(intake.prepared.job), *intake.notes):
                self.progress.on_phase(f"{intake.prepared.key}: {note}")
            engine.submit(intake.prepared)
        self._run_engine(engine)
        try:
            metrics.write_file(self.output.metrics)
        except OSError as error:
            self.progress.on_phase(f"{self.output.metrics.name} could not be written: {error}")

    def _open_state(self) -> PoolState:
        paths = PoolPaths(checkpoints=self.output.path / "checkpoints", plans=self.output.path / "plans")
        state = PoolState(paths, keep_last=self.pool.spec.checkpoint.keep_last, resume=self.options.resume)
        for passed in state.passed_over:
            self.progress.on_phase(f"{passed.name} {passed.why}")
        return state

    def _build_engine(self, base: SharedBase, state: PoolState, metrics: TrainerMetrics) -> Engine:
        observers: list[EngineObserver] = [ProgressObserver(self.progress), self.recorder, metrics]
        return Engine(
            base.backend,
            base.slots,
            state,
            EngineOptions.from_spec(self.pool.spec, step_limit=self.options.step_limit),
            Observers(observers),
            on_end=lambda result: self.ended.__setitem__(result.job, result),
        )

    def _prepare_jobs(self, base: SharedBase, state: PoolState) -> Iterator[Intake]:
        """Give the jobs that can train; the others end here, each with its own reason."""
        context = IntakeContext(
            pool=self.pool,
            base=base,
            directory=self.options.directory,
            output_root=self.output.path,
            cache_dir=self.output.cache,
            config_maps=self.manifests.config_maps,
        )
        outputs: dict[str, Location] = {}
        for job in self.manifests.jobs:
            if job.key in state.ended and self._keep_earlier(job, state, context):
                continue
            if job.spec.suspend:
                self.ended[job.key] = JobResult(
                    job=job.key,
                    state=JobState.SUSPENDED,
                    rank=job.spec.lora.r,
                    reason=Reason.SUSPENDED.value,
                    message="spec.suspend is true",
                )
                continue
            self.progress.on_phase(f"reading the rows of {job.key}")
            try:
                intake = prepare_job(job, context)
                check_distinct_outputs({**outputs, job.key: intake.prepared.output.location})
                outputs[job.key] = intake.prepared.output.location
                yield intake
            except RefusalError as error:
                self._fail(job, error)

    def _keep_earlier(self, job: AdapterJob, state: PoolState, context: IntakeContext) -> bool:
        """Book what is known of a job that had ended; False if it is to be trained again."""
        try:
            review = review_earlier(job, state.ended[job.key], context)
        except RefusalError as error:
            self._fail(job, error)
            return True
        if review.note:
            self.progress.on_phase(f"{job.key}: {review.note}")
        if review.kept is None:
            state.forget(job.key)
            return False
        folder = state.job_folder(job.key)
        self.ended[job.key] = replace(review.kept, checkpoint_path=str(folder) if folder.is_dir() else None)
        return True

    def _run_engine(self, engine: Engine) -> None:
        self.progress.on_phase("training")
        try:
            with _stop_on_signals(engine):
                engine.run()
        except Exception as error:  # noqa: BLE001 (whatever it is, the finished jobs' results must be written)
            (self.output.path / ERROR_LOG).write_text(traceback.format_exc(), encoding="utf-8")
            where = self.output.path / ERROR_LOG
            text = f"{type(error).__name__}: {str(error)[:200]}; details are in {where}; checkpoints are kept"
            for run in engine.running:
                self._fail(run.prepared.job, RefusalError(Reason.INTERNAL_ERROR, text))
        for waiting in engine.waiting:
            self.ended[waiting.key] = JobResult(
                job=waiting.key,
                state=JobState.PENDING,
                rank=waiting.options.rank,
                reason=Reason.NO_FREE_SLOT.value,
                message=f"the run ended before one of {self.pool.spec.slots.max} slots was free",
                total_steps=waiting.optimizer_options.total_steps,
                rows=build_row_account(waiting.dataset.report),
            )

    def _fail(self, job: AdapterJob, error: RefusalError) -> None:
        self.ended[job.key] = JobResult(
            job=job.key,
            state=JobState.FAILED,
            rank=job.spec.lora.r,
            reason=error.reason.value,
            message=error.message,
        )
        self.progress.on_end(job.key, JobState.FAILED, f"{error.reason}: {error.message}")

    def _result_of(self, job: AdapterJob) -> JobResult:
        return self.ended[job.key]

    def _build_facts(self, base: SharedBase) -> PoolFacts:
        spec = self.pool.spec
        return PoolFacts(
            pool=self.pool.key,
            base_model=spec.base_model.storage_uri,
            dtype=spec.base_model.dtype.value,
            device=str(base.backend.device),
            token_capacity=spec.batching.max_tokens_per_microbatch,
            num_parameters=base.num_parameters,
            base_bytes=base.num_bytes,
        )

    def _build_pool_result(self) -> PoolResult:
        spec = self.pool.spec
        facts = self.facts or PoolFacts(
            pool=self.pool.key,
            base_model=spec.base_model.storage_uri,
            dtype=spec.base_model.dtype.value,
            device=str(choose_device(self.pool)),
            token_capacity=spec.batching.max_tokens_per_microbatch,
            num_parameters=0,
            base_bytes=0,
        )
        return self.recorder.build_result(facts)


def _note_secrets(job: AdapterJob) -> tuple[str, ...]:
    if job.spec.dataset.secret_ref is None:
        return ()
    return ("spec.dataset.secretRef: there are no Secrets in a local run; credentials come from the environment",)


@contextmanager
def _stop_on_signals(engine: Engine) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run at a step boundary with a checkpoint; a second SIGINT ends it at once."""

    def stop(number: int, _frame: object) -> None:
        engine.request_stop()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _measure_peak_rss() -> int:
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes if sys.platform == "darwin" else kibibytes * 1024


def _list_versions() -> dict[str, str]:
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("multigraft", "torch", "transformers"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions
