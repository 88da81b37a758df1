"""Which output folders are taken, before any of them is touched."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.reasons import RefusalError
from multigraft_trainer.admission.prepare_job import OUTPUT_FIELD, IntakeContext, locate_output
from multigraft_trainer.report.results import JobResult, JobState
from multigraft_trainer.storage.output_claims import OutputClaim, Strength, refuse_overlaps


def refuse_taken_outputs(
    jobs: Sequence[AdapterJob],
    context: IntakeContext,
    *,
    ended: Mapping[str, JobResult] | None = None,
    training: Collection[str] = (),
) -> dict[str, RefusalError]:
    """Give, by job, the refusal of each whose output meets the folder of another one.

    Args:
        jobs: All jobs, suspended ones too.
        ended: Jobs that ended in this run folder, also such as have no manifest any more.
        training: Keys of jobs that have begun.
    """
    claims = [claim for job in jobs for claim in _claim(job, context, has_begun=job.key in training)]
    claims += [claim for result in (ended or {}).values() for claim in _claim_ended(result, context)]
    return refuse_overlaps(claims)


def _claim(job: AdapterJob, context: IntakeContext, *, has_begun: bool) -> Iterator[OutputClaim]:
    try:
        location = locate_output(job, context.build_roots(job.metadata.namespace))
    except RefusalError:
        return  # this job fails by itself, with that reason
    asked = Strength.ASKED if job.spec.output.storage_uri else Strength.DEFAULT
    yield OutputClaim(job.key, location, Strength.HELD if has_begun else asked)


def _claim_ended(result: JobResult, context: IntakeContext) -> Iterator[OutputClaim]:
    """Claim where the adapter was put, and where it lies by default if the run folder was moved since."""
    if result.state is not JobState.SUCCEEDED:
        return
    roots = context.build_roots(result.job.partition("/")[0])
    for uri in {result.adapter_path or "", f"adapters/{result.job}"} - {""}:
        try:
            yield OutputClaim(result.job, roots.check_write(uri, field=OUTPUT_FIELD), Strength.HELD)
        except RefusalError:
            continue
