"""A job joins the shared base: a slot, its weights (fresh, from a start adapter or from a checkpoint), its counters."""

from __future__ import annotations

from multigraft.api.reasons import Reason
from multigraft_trainer.adapters.optimizer import AdapterOptimizer
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.backends.backend import Backend
from multigraft_trainer.checkpoints.checkpoint_folder import AdapterSnapshot
from multigraft_trainer.checkpoints.snapshot import restore_snapshot
from multigraft_trainer.engine.evaluate import BASE_ALONE, evaluate_loss
from multigraft_trainer.engine.job_run import JobRun, PreparedJob
from multigraft_trainer.engine.observer import EngineObserver
from multigraft_trainer.engine.pool_state import PoolState


def start_job(
    prepared: PreparedJob,
    backend: Backend,
    slots: SlotPool,
    state: PoolState,
    observer: EngineObserver,
    *,
    token_capacity: int,
) -> JobRun:
    """Give the job a slot and everything it had when it was last saved.

    Raises:
        RefusalError: NO_FREE_SLOT, or whatever is wrong with its checkpoint or start adapter; no slot is held then.
    """
    restored = state.restore(prepared)
    for passed in restored.passed_over:
        observer.on_note(prepared.key, f"{passed.name} {passed.why}")
    slot = slots.acquire(prepared.options)
    try:
        run = JobRun(prepared, slot, AdapterOptimizer(slots.adapter(slot), prepared.optimizer_options))
        if restored.snapshot is not None:
            _restore(run, restored.snapshot, slots)
        else:
            if prepared.start_weights is not None:
                slots.adapter(slot).load_weights(prepared.start_weights, reason=Reason.INVALID_START_ADAPTER)
            run.heldout_loss_before = _measure_before(run, backend, observer, token_capacity)
    except BaseException:
        slots.release(slot)
        raise
    return run


def _restore(run: JobRun, snapshot: AdapterSnapshot, slots: SlotPool) -> None:
    run.optimizer.progress = restore_snapshot(snapshot, slots.adapter(run.slot))
    run.saved_step = run.step
    run.restore_summary(snapshot.state.summary)


def _measure_before(run: JobRun, backend: Backend, observer: EngineObserver, token_capacity: int) -> float | None:
    heldout = run.prepared.heldout
    if heldout is None:
        return None
    observer.on_phase(f"{run.key}: held-out loss before training")
    slot = BASE_ALONE if run.prepared.start_weights is None else run.slot  # a fresh adapter changes nothing: B = 0
    return evaluate_loss(backend, heldout.samples, slot=slot, token_capacity=token_capacity)
