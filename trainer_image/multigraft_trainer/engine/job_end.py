"""How a job leaves the shared base: its held-out loss, its exported and checked adapter, its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from multigraft.api.reasons import RefusalError
from multigraft_trainer.adapters.export import export_adapter
from multigraft_trainer.adapters.peft_config import CONFIG_FILE, WEIGHTS_FILE
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.adapters.success_gate import check_success, check_work
from multigraft_trainer.backends.backend import Backend
from multigraft_trainer.engine.evaluate import BASE_ALONE, evaluate_loss, sum_losses
from multigraft_trainer.engine.job_run import JobRun, PreparedJob
from multigraft_trainer.engine.observer import EngineObserver
from multigraft_trainer.engine.pool_state import PoolState
from multigraft_trainer.intake.samples import IntakeReport, TokenisedSample
from multigraft_trainer.report.results import JobResult, JobState, RowAccount
from multigraft_trainer.storage.durable_files import hash_file, refuse_if_not_writable
from multigraft_trainer.unexpected import explain_unexpected

PROBE_TARGETS = 8


def finish_job(
    run: JobRun, backend: Backend, slots: SlotPool, state: PoolState, observer: EngineObserver, *, token_capacity: int
) -> JobResult:
    """Export the adapter of a job that took its last step, check it, and give the result.

    A job is Succeeded only if the exported files, read back, pass `check_success`.
    """
    after: float | None = None
    try:
        if run.prepared.heldout is not None:
            observer.on_phase(f"{run.key}: held-out loss after training")
            after = evaluate_loss(backend, run.prepared.heldout.samples, slot=run.slot, token_capacity=token_capacity)
        observer.on_phase(f"{run.key}: exporting and checking the adapter")
        state.check_claim(run.prepared.identity)
        digest = _export(run, backend, slots)
    except Exception as error:  # noqa: BLE001 (the job's own fault; the others run on)
        refusal = explain_unexpected(error, "measuring and exporting the adapter")
        return build_result(run, state, JobState.FAILED, error=refusal, heldout_loss_after=after)
    return build_result(
        run,
        state,
        JobState.SUCCEEDED,
        heldout_loss_after=after,
        adapter_path=run.prepared.output.location.shown,
        adapter_digest=digest,
    )


def _export(run: JobRun, backend: Backend, slots: SlotPool) -> tuple[str, int]:
    """Write, check and publish the adapter; gives SHA-256 and bytes of its weights."""
    prepared, adapter = run.prepared, slots.adapter(run.slot)
    check_work(run.optimizer.progress)
    export_adapter(
        prepared.output.path,
        adapter.named_weights(),
        prepared.options,
        slots.linears,
        base=prepared.base,
        title=prepared.key,
    )
    probe = _find_probe(prepared.dataset.samples)

    def measure(with_adapter: bool) -> float:
        slot = run.slot if with_adapter else BASE_ALONE
        return sum_losses(backend, [probe], slot=slot)

    check_success(prepared.output.path, adapter, run.optimizer.progress, measure)
    with refuse_if_not_writable(f"adapter of {prepared.key}"):
        digest = hash_file(prepared.output.path / WEIGHTS_FILE)
    prepared.output.publish(last=CONFIG_FILE)
    return digest


def _find_probe(samples: Sequence[TokenisedSample]) -> TokenisedSample:
    """Take the shortest sample with at least eight targets, or the one with most."""
    rich = [sample for sample in samples if sample.num_supervised >= PROBE_TARGETS]
    if rich:
        return min(rich, key=lambda sample: sample.num_tokens)
    return max(samples, key=lambda sample: sample.num_supervised)


def build_result(
    run: JobRun,
    state: PoolState,
    job_state: JobState,
    *,
    error: RefusalError | None = None,
    heldout_loss_after: float | None = None,
    adapter_path: str | None = None,
    adapter_digest: tuple[str, int] | tuple[None, None] = (None, None),
) -> JobResult:
    """Build the result of a job that held a slot; `adapter_digest` is SHA-256 and bytes of the adapter's weights."""
    progress = run.optimizer.progress
    folder = state.job_folder(run.prepared.identity)
    return JobResult(
        job=run.key,
        state=job_state,
        rank=run.prepared.options.rank,
        reason=error.reason.value if error else "",
        message=error.message if error else "",
        steps=run.step,
        total_steps=run.optimizer.options.total_steps,
        num_tokens=run.num_tokens,
        num_supervised_tokens=progress.supervised_tokens,
        num_skipped_steps=progress.skipped_nonfinite + progress.skipped_no_tokens,
        heldout_loss_before=run.heldout_loss_before,
        heldout_loss_after=heldout_loss_after,
        rows=build_row_account(run.prepared.dataset.report),
        adapter_path=adapter_path,
        checkpoint_path=str(folder) if folder.is_dir() else None,
        uid=run.prepared.uid,
        adapter_sha256=adapter_digest[0],
        adapter_bytes=adapter_digest[1],
        seconds=run.seconds,
        history=tuple(run.history),
        training_spec=run.prepared.training_spec,
    )


def build_refused(prepared: PreparedJob, error: RefusalError) -> JobResult:
    """Build the result of a job that passed intake but got no slot."""
    return JobResult(
        job=prepared.key,
        uid=prepared.uid,
        state=JobState.FAILED,
        rank=prepared.options.rank,
        reason=error.reason.value,
        message=error.message,
        total_steps=prepared.optimizer_options.total_steps,
        rows=build_row_account(prepared.dataset.report),
        training_spec=prepared.training_spec,
    )


def build_row_account(report: IntakeReport) -> RowAccount:
    """Count an intake report."""
    return RowAccount(
        num_read=report.num_rows,
        num_trained=report.num_trained,
        num_truncated=report.num_truncated,
        num_dropped_by_code=dict(Counter(row.code for row in report.dropped)),
    )
