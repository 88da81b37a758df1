"""Say whether a job fits a pool, from their specs alone. Whatever needs other objects is said here, not in CEL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.reasons import Reason

ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class Refusal:
    """Why a pool cannot take a job: a typed reason, the job's field, and a message with both numbers."""

    reason: Reason
    field: str
    message: str


def select_pools(job: AdapterJob, pools: Iterable[BaseModelPool]) -> list[BaseModelPool]:
    """Give the pools that `job` names or selects, in their given order; references stay in the job's namespace."""
    return [pool for pool in pools if _is_meant(job, pool)]


def check_job_against_pool(
    job: AdapterJob, pool: BaseModelPool, *, tile_tokens: int = 1, measured_capacity: int | None = None
) -> list[Refusal]:
    """Give every reason why `pool` cannot train `job`; empty if it can.

    Args:
        tile_tokens: Tokens of the tiles that the pool's backend pads to; 1: no padding.
        measured_capacity: What the trainer found for a `maxTokensPerMicrobatch` of Auto; None: not known here, then
            the length is not checked.
    """
    if not _is_meant(job, pool):
        return [_refuse_other_pool(job, pool)]
    checks = (
        _check_rank(job, pool),
        _check_length(job, pool, tile_tokens, measured_capacity),
        _check_targets(job, pool),
    )
    return [refusal for refusal in checks if refusal is not None]


def _is_meant(job: AdapterJob, pool: BaseModelPool) -> bool:
    if job.metadata.namespace != pool.metadata.namespace:
        return False
    if job.spec.pool_ref is not None:
        return job.spec.pool_ref.name == pool.metadata.name
    return job.spec.pool_selector is not None and job.spec.pool_selector.matches(pool.metadata.labels)


def _refuse_other_pool(job: AdapterJob, pool: BaseModelPool) -> Refusal:
    if job.spec.pool_ref is not None:
        wanted = f"{job.metadata.namespace}/{job.spec.pool_ref.name}"
        return Refusal(Reason.POOL_NOT_FOUND, "spec.poolRef.name", f"names pool {wanted}, not {pool.key}")
    if job.metadata.namespace != pool.metadata.namespace:
        message = f"takes pools of namespace {job.metadata.namespace}, not {pool.key}"
    else:
        message = f"does not match the labels of pool {pool.key}"
    return Refusal(Reason.POOL_NOT_FOUND, "spec.poolSelector", message)


def _check_rank(job: AdapterJob, pool: BaseModelPool) -> Refusal | None:
    rank, limit = job.spec.lora.r, pool.spec.slots.max_rank
    if rank <= limit:
        return None
    return Refusal(Reason.RANK_EXCEEDS_POOL, "spec.lora.r", f"{rank} is over slots.maxRank {limit} of pool {pool.key}")


def _check_length(
    job: AdapterJob, pool: BaseModelPool, tile_tokens: int, measured_capacity: int | None
) -> Refusal | None:
    # a sample may be as long as maxSeqLength whatever longSamplePolicy does with longer ones
    length, given = job.spec.training.max_seq_length, pool.spec.batching.given_capacity
    capacity = measured_capacity if given is None else given
    if capacity is None:
        return None
    num_tiles = -(-length // tile_tokens)
    if num_tiles <= capacity // tile_tokens:
        return None
    padded = (
        f" ({num_tiles * tile_tokens} in whole tiles of {tile_tokens})" if num_tiles * tile_tokens != length else ""
    )
    shown = str(capacity) if given is not None else f"Auto, here {capacity},"
    return Refusal(
        Reason.SEQUENCE_EXCEEDS_CAPACITY,
        "spec.training.maxSeqLength",
        f"{length} tokens{padded} do not fit batching.maxTokensPerMicrobatch {shown} of pool {pool.key}",
    )


def _check_targets(job: AdapterJob, pool: BaseModelPool) -> Refusal | None:
    allowed = pool.spec.slots.target_modules
    if allowed == [ALL_LINEAR]:
        return None
    foreign = [target for target in job.spec.lora.target_modules if target not in allowed]
    if not foreign:
        return None
    return Refusal(
        Reason.TARGET_MODULES_NOT_ALLOWED,
        "spec.lora.targetModules",
        f"{', '.join(foreign)} not among slots.targetModules {', '.join(allowed)} of pool {pool.key}",
    )
