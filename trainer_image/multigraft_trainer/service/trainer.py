"""The trainer of one pod without its ports: loads the base, then trains what is desired until it is told to stop.

Three threads: callers (HTTP) change the desired set and read the state; one thread does intake; one owns the engine.
They meet in the job table. Nobody needs to call for training to go on.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.control import AssignedJob, Assignments, BasePhase, BaseState, Capacity, TrainerState
from multigraft.api.reasons import Reason, RefusalError
from multigraft.manifests.config_map import ConfigMap
from multigraft_trainer.admission.checkpoint_root import open_checkpoint_root
from multigraft_trainer.admission.output_owners import refuse_taken_outputs
from multigraft_trainer.admission.prepare_job import IntakeContext, prepare_job
from multigraft_trainer.admission.shared_base import SharedBase, open_shared_base
from multigraft_trainer.capacity.find_capacity import CapacityPlaces, find_capacity
from multigraft_trainer.capacity.pool_capacity import PoolCapacity, read_given_capacity
from multigraft_trainer.checkpoints.owner_claim import OwnerClaims
from multigraft_trainer.checkpoints.records import code_version
from multigraft_trainer.engine.engine import Engine, EngineOptions
from multigraft_trainer.engine.job_run import PreparedJob
from multigraft_trainer.engine.observer import EngineObserver, Observers
from multigraft_trainer.engine.pool_state import PoolPaths, PoolState
from multigraft_trainer.report.results import JobResult, JobState
from multigraft_trainer.service.desired_set import DesiredSet
from multigraft_trainer.service.exit_codes import ExitCode
from multigraft_trainer.service.figures import Figures
from multigraft_trainer.service.job_entry import JobEntry
from multigraft_trainer.service.job_table import JobTable
from multigraft_trainer.service.json_log import EventLog
from multigraft_trainer.service.secret_of_job import refuse_secret
from multigraft_trainer.service.service_metrics import ServiceMetrics
from multigraft_trainer.service.settings import TrainerSettings
from multigraft_trainer.storage.roots import CHECKPOINTS
from multigraft_trainer.unexpected import explain_unexpected

_log = EventLog(__name__)


class Trainer:
    """One trainer process."""

    def __init__(self, settings: TrainerSettings, pool: BaseModelPool, metrics: ServiceMetrics) -> None:
        self._settings = settings
        self._pool = pool
        self._metrics = metrics
        self._figures = Figures()
        desired = DesiredSet(pool, settings.pod_name, settings.state_dir)
        self._table = JobTable(desired, self._figures, num_slots=pool.spec.slots.max)
        self._base_state = BaseState(phase=BasePhase.LOADING)
        self._start_id = uuid.uuid4().hex
        self._private: tuple[Path, ...] = ()  # folders that no job may touch
        self._stop_lock = threading.Lock()
        self._capacity = read_given_capacity(pool.spec)  # None: Auto, not found yet
        self._plans = Path()
        self._engine: Engine | None = None
        self._thread: threading.Thread | None = None
        self.exit_code = ExitCode.STOPPED
        self.failure: RefusalError | None = None

    def start(self, on_done: Callable[[], None]) -> None:
        """Begin; `on_done` is called from another thread once everything is checkpointed, or all is lost."""
        self._thread = threading.Thread(target=self._run, args=(on_done,), name="engine", daemon=True)
        self._thread.start()

    def request_stop(self) -> None:
        """Checkpoint at the next step boundary and end. Takes a lock: not for a signal handler of Python's."""
        with self._stop_lock:
            if self._engine is not None:
                self._engine.request_stop()
            self._table.request_stop()

    @property
    def is_alive(self) -> bool:
        """Tell whether the engine's thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_ready(self) -> bool:
        """Tell whether jobs can train: base loaded, engine alive, not stopping."""
        return self.is_alive and self._base_state.phase is BasePhase.READY and not self._table.is_stopping

    @property
    def has_jobs_to_save(self) -> bool:
        """Tell whether there may be anything to checkpoint."""
        return self._engine is not None

    def assign(self, wanted: Assignments) -> TrainerState:
        """Make `wanted` the desired set and give the state. Raises as `JobTable.assign`."""
        if self._table.assign(wanted):
            self._metrics.on_epoch(wanted.epoch)
            _log.info("new desired set", epoch=wanted.epoch, jobs=len(wanted.jobs))
        return self.read_state()

    def read_state(self) -> TrainerState:
        """Tell what is true now."""
        slots = self._pool.spec.slots
        return TrainerState(
            pod=self._settings.pod_name,
            pool=self._pool.key,
            start_id=self._start_id,
            version=code_version(),
            epoch=self._table.epoch,
            stopping=self._table.is_stopping,
            base=self._base_state,
            capacity=Capacity(
                slots=slots.max,
                slots_in_use=self._figures.slots_in_use,
                max_rank=slots.max_rank,
                token_capacity=self._capacity.tokens if self._capacity else None,
                capacity_source=self._capacity.source.value if self._capacity else None,
                tokens_per_second=self._figures.measure_tokens_per_second(),
            ),
            jobs=self._table.report(),
            plan=self._figures.plan,
        )

    def _run(self, on_done: Callable[[], None]) -> None:
        try:
            self._train()
            _log.info("stopped", epoch=self._table.epoch)
        except RefusalError as error:
            _log.error("the pool cannot be served", reason=error.reason.value, message=error.message)
            self._fail(ExitCode.BAD_CONFIGURATION, error)
        except Exception as error:  # noqa: BLE001 (the process must end and say why; checkpoints are kept)
            _log.crash("the engine failed", reason=Reason.INTERNAL_ERROR.value)
            text = f"{type(error).__name__}: {str(error)[:500]}"
            self._fail(ExitCode.INTERNAL_ERROR, RefusalError(Reason.INTERNAL_ERROR, text))
        finally:
            on_done()

    def _fail(self, code: ExitCode, error: RefusalError) -> None:
        self.exit_code, self.failure = code, error
        self._base_state = BaseState(phase=BasePhase.FAILED, reason=error.reason.value, message=error.message)
        self._table.request_stop()

    def _train(self) -> None:
        _log.info("loading the base model", uri=self._pool.spec.base_model.storage_uri)
        state = self._open_state()
        base = open_shared_base(self._pool, self._settings.storage_root, self._settings.cache_dir)
        engine = self._open_engine(base, state, self._find_capacity(base))
        intake = threading.Thread(target=self._take_in_jobs, args=(base, state), name="intake", daemon=True)
        intake.start()
        try:
            while self._table.align(engine):
                engine.run_horizon()
        finally:
            engine.close()

    def _open_state(self) -> PoolState:
        spec, settings = self._pool.spec, self._settings
        root = open_checkpoint_root(
            self._pool,
            storage_root=settings.storage_root,
            output_root=settings.output_root,
            default=f"{CHECKPOINTS}/{self._pool.metadata.namespace}",
        )
        self._private = (root, settings.cache_dir, settings.state_dir)
        own = root / "pools" / self._pool.key / settings.pod_name
        self._plans = own / "plans"
        paths = PoolPaths(checkpoints=root, plans=self._plans, boundaries=own)
        claims = OwnerClaims(lambda: self._table.build_claim(f"{settings.pod_name}/{self._start_id}"))
        state = PoolState(paths, keep_last=spec.checkpoint.keep_last, resume=True, claims=claims)
        for passed in state.passed_over:
            _log.warning("a checkpoint is passed over", checkpoint=passed.name, message=passed.why)
        return state

    def _find_capacity(self, base: SharedBase) -> PoolCapacity:
        places = CapacityPlaces(plans=self._plans, cache=self._settings.cache_dir)
        found = find_capacity(self._pool.spec, base, places, resume=True, on_phase=_log.info, on_note=_log.warning)
        self._capacity = found
        self._metrics.engine.on_capacity(found.tokens, found.source)
        _log.info("token capacity", tokens=found.tokens, source=found.source.value, message=found.detail or None)
        return found

    def _open_engine(self, base: SharedBase, state: PoolState, capacity: PoolCapacity) -> Engine:
        observers: list[EngineObserver] = [self._figures, self._metrics.engine]
        engine = Engine(
            base.backend,
            base.slots,
            state,
            EngineOptions.from_spec(self._pool.spec, capacity),
            Observers(observers),
            on_end=self._table.book_end,
            wants_boundary=self._table.waits_for_boundary,
        )
        self._figures.list_runs = lambda: engine.running
        self._metrics.on_base(base.num_bytes)
        with self._stop_lock:
            self._engine = engine
            if self._table.is_stopping:
                engine.request_stop()
        device = str(base.backend.device)
        self._base_state = BaseState(
            phase=BasePhase.READY, fingerprint=base.fingerprint, bytes=base.num_bytes, device=device
        )
        self._table.open(state)
        _log.info("base model ready", bytes=base.num_bytes, device=device)
        return engine

    def _take_in_jobs(self, base: SharedBase, state: PoolState) -> None:
        while (entry := self._table.wait_for_intake()) is not None:
            earlier = state.ended.get(entry.identity)
            if earlier is not None and earlier.state is JobState.SUCCEEDED:
                self._table.book_intake(entry, None, earlier)
            else:
                self._table.book_intake(entry, *self._take_in(entry, base))

    def _take_in(self, entry: JobEntry, base: SharedBase) -> tuple[PreparedJob | None, JobResult | None]:
        """Give the prepared job, or the result that says why it cannot be trained."""
        assigned = entry.assigned
        _log.info("reading the rows", job=assigned.key)
        try:
            refuse_secret(assigned.spec)
            context = self._build_context(assigned, base)
            self._refuse_taken_output(entry, context)
            intake = prepare_job(assigned.build_job(), context)
        except RefusalError as error:
            return None, _refuse(assigned, error)
        except Exception as error:  # noqa: BLE001 (one job's fault stays its own)
            _log.crash("intake failed", job=assigned.key)
            return None, _refuse(assigned, explain_unexpected(error, "preparing the job"))
        for note in intake.notes:
            _log.info(note, job=assigned.key)
        return intake.prepared, None

    def _refuse_taken_output(self, entry: JobEntry, context: IntakeContext) -> None:
        """Refuse a folder in which another job has begun, or that bears the name of another desired one."""
        begun, others = self._table.list_neighbours(entry)
        waiting = [job for job in others if job.spec.output.storage_uri is None]
        jobs = [job.build_job() for job in (*begun, *waiting, entry.assigned)]
        taken = refuse_taken_outputs(jobs, context, training={job.key for job in begun})
        if entry.assigned.key in taken:
            raise taken[entry.assigned.key]

    def _build_context(self, assigned: AssignedJob, base: SharedBase) -> IntakeContext:
        config_maps: dict[str, ConfigMap] = {}
        reference = assigned.spec.dataset.config_map_ref
        if reference is not None and assigned.rows is not None:
            found = ConfigMap(assigned.id.namespace, reference.name, {assigned.rows.key: assigned.rows.content})
            config_maps[found.key] = found
        return IntakeContext(
            pool=self._pool,
            base=base,
            directory=self._settings.storage_root,
            output_root=self._settings.output_root,
            cache_dir=self._settings.cache_dir,
            config_maps=config_maps,
            private=self._private,
            knows_uids=True,
            measured_capacity=self._capacity.tokens if self._capacity else None,
        )


def _refuse(assigned: AssignedJob, error: RefusalError) -> JobResult:
    _log.warning("job refused", job=assigned.key, reason=error.reason.value, message=error.message)
    return JobResult(
        job=assigned.key,
        uid=assigned.id.uid,
        state=JobState.FAILED,
        rank=assigned.spec.lora.r,
        reason=error.reason.value,
        message=error.message,
    )
