"""Refuse work and limits that no plan can serve, before anything is packed."""

from __future__ import annotations

from collections.abc import Sequence

from multigraft.planner.plan import GlobalBatch, JobWork, PlanLimits, SampleRef

MAX_NAME_IN_MESSAGE = 160  # a job's key may have 507 characters; messages stay under 500


def short_name(job: str) -> str:
    """Shorten a job's key for a message."""
    return job if len(job) <= MAX_NAME_IN_MESSAGE else f"{job[: MAX_NAME_IN_MESSAGE - 3]}..."


def padded(num_tokens: int, tile_tokens: int) -> int:
    """Round tokens up to whole tiles."""
    return -(-num_tokens // tile_tokens) * tile_tokens


def check_limits(limits: PlanLimits) -> None:
    """Check the limits of a plan.

    Raises:
        ValueError: Naming the field, its value and what is allowed.
    """
    for name in ("token_capacity", "tile_tokens", "num_stages", "num_replicas"):
        value = getattr(limits, name)
        if value < 1:
            raise ValueError(f"{name}: got {value}, allowed 1 or more")
    if limits.tile_tokens > limits.token_capacity:
        raise ValueError(
            f"token_capacity: got {limits.token_capacity}, allowed {limits.tile_tokens} (tile_tokens) or more"
        )


def check_work(work: Sequence[JobWork], limits: PlanLimits) -> None:
    """Check that every sample fits a microbatch and that every job's steps are consecutive, not empty and known once.

    Raises:
        ValueError: Naming the job, the draw, its length and the capacity, in under 500 characters.
    """
    check_limits(limits)
    seen: set[str] = set()
    for job_work in work:
        if job_work.job in seen:
            raise ValueError(f"job {short_name(job_work.job)}: listed twice in one plan")
        seen.add(job_work.job)
        _check_job(job_work, limits)


def _check_job(job_work: JobWork, limits: PlanLimits) -> None:
    name = short_name(job_work.job)
    draws: set[int] = set()
    for index, batch in enumerate(job_work.global_batches):
        want = job_work.global_batches[0].step + index
        if batch.step != want:
            raise ValueError(
                f"job {name}: global batch {index} has step {batch.step}, allowed {want} (steps are consecutive)"
            )
        if not batch.samples:
            raise ValueError(f"job {name}: step {batch.step} has no samples, at least 1 is needed")
        _check_samples(name, batch, limits)
        draws.update(sample.draw for sample in batch.samples)
    if len(draws) != sum(len(batch.samples) for batch in job_work.global_batches):
        raise ValueError(f"job {name}: a draw occurs twice; each draw of a job is one visit of one sample")


def _check_samples(name: str, batch: GlobalBatch, limits: PlanLimits) -> None:
    for sample in batch.samples:
        if sample.num_tokens < 1:
            raise ValueError(f"job {name}: draw {sample.draw} has {sample.num_tokens} tokens, at least 1 is needed")
    too_long = [s for s in batch.samples if padded(s.num_tokens, limits.tile_tokens) > limits.token_capacity]
    if too_long:
        raise ValueError(_too_long_message(name, batch.step, too_long[0], len(too_long), limits))


def _too_long_message(name: str, step: int, sample: SampleRef, num_too_long: int, limits: PlanLimits) -> str:
    tiles = f" ({padded(sample.num_tokens, limits.tile_tokens)} in whole tiles of {limits.tile_tokens})"
    others = f"; {num_too_long - 1} more of this step are too long" if num_too_long > 1 else ""
    return (
        f"job {name}: draw {sample.draw} of step {step} has {sample.num_tokens} tokens"
        f"{tiles if limits.tile_tokens > 1 else ''}, a microbatch takes {limits.token_capacity}{others}"
    )
