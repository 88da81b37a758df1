"""What a resumed run does with a job that had ended: give its result again, train it again, or refuse it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.peft_config import CONFIG_FILE, WEIGHTS_FILE
from multigraft_trainer.admission.prepare_job import IntakeContext, load_training_rows, locate_output
from multigraft_trainer.checkpoints.training_spec import build_training_spec, describe_difference
from multigraft_trainer.report.results import JobResult, JobState
from multigraft_trainer.storage.durable_files import hash_file
from multigraft_trainer.storage.roots import Location


@dataclass(frozen=True)
class Review:
    """What to do with a job that had ended."""

    kept: JobResult | None = None  # None: train it again, from its last checkpoint if it has one
    note: str = ""


def review_earlier(job: AdapterJob, earlier: JobResult, context: IntakeContext) -> Review:
    """Compare a job that had ended with what it is today.

    One that succeeded keeps its result if spec and rows are those that it was trained with and its adapter is where it
    belongs. One that failed is tried again; its checkpoints say by themselves what spec they are of.

    Raises:
        RefusalError: INVALID_CHECKPOINT, naming the fields that differ; STORAGE_NOT_ALLOWED of the output.
    """
    if earlier.state is not JobState.SUCCEEDED:
        return Review(note=f"had failed ({earlier.reason or 'no reason'}) and is tried again")
    if earlier.training_spec is None:
        return Review(note="had succeeded, but what it was trained with is not recorded; trained again")
    note = _compare(job, earlier, context)
    location = locate_output(job, context.build_roots(job.metadata.namespace))
    if not _is_in_place(location, earlier):
        return Review(note=f"had succeeded, but its adapter is not at {location.uri}; trained again")
    return Review(replace(earlier, adapter_path=location.shown), note)


def _compare(job: AdapterJob, earlier: JobResult, context: IntakeContext) -> str:
    """Refuse another spec or other rows; gives a note if the rows cannot be read any more."""
    assert earlier.training_spec is not None, "the caller looked"  # noqa: S101
    fingerprint = str(earlier.training_spec["dataset"]["fingerprint"])
    _refuse_difference(job, earlier, context, fingerprint)  # first, as another spec may not even fit pool or rows
    try:
        dataset = load_training_rows(job, context)
    except RefusalError as error:
        return f"kept, but its rows cannot be compared with those that were trained: {error.message}"
    _refuse_difference(job, earlier, context, dataset.fingerprint)
    return ""


def _refuse_difference(job: AdapterJob, earlier: JobResult, context: IntakeContext, fingerprint: str) -> None:
    now = build_training_spec(job, base_model=context.base.fingerprint, dataset_fingerprint=fingerprint)
    difference = describe_difference(dict(earlier.training_spec or {}), now)
    if difference:
        raise RefusalError(
            Reason.INVALID_CHECKPOINT,
            f"had succeeded with another spec: {difference}. Restore the spec to keep that result, or start anew under "
            "another name or --out folder",
        )


def _is_in_place(location: Location, earlier: JobResult) -> bool:
    if not location.is_local:
        return location.uri == earlier.adapter_path
    folder = Path(location.path)
    try:
        return (folder / CONFIG_FILE).is_file() and hash_file(folder / WEIGHTS_FILE)[0] == earlier.adapter_sha256
    except OSError:
        return False
