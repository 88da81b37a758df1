"""Which pool of the manifests a local run trains, and which jobs belong to it."""

from __future__ import annotations

from dataclasses import dataclass

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.admission import select_pools
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.reasons import Reason, RefusalError
from multigraft.manifests.collection import Manifests


@dataclass(frozen=True)
class PoolSelection:
    """One pool and its part of the manifests."""

    pool: BaseModelPool
    jobs: tuple[AdapterJob, ...]
    notes: tuple[str, ...] = ()  # jobs that are not part of this run


def select_pool(manifests: Manifests, name: str | None = None) -> PoolSelection:
    """Choose the pool to run, and the jobs that it trains.

    A job that no pool of the manifests can take is part of the run, where it fails and says so.

    Args:
        name: `NAMESPACE/NAME`, or `NAME` where it is the only one of that name; None if there is one pool.

    Raises:
        RefusalError: POOL_NOT_FOUND if there is none; INVALID_SPEC if several are meant, or none of the jobs.
    """
    pool = _choose(manifests.pools, name)
    if not manifests.jobs:
        raise RefusalError(Reason.INVALID_SPEC, "no AdapterJob among the manifests")
    mine: list[AdapterJob] = []
    notes: list[str] = []
    for job in manifests.jobs:
        pools = select_pools(job, manifests.pools)
        if pools and pool not in pools:
            others = ", ".join(other.key for other in pools)
            notes.append(f"{job.key} is not part of this run: its pool is {others}, and this is a run of {pool.key}")
        else:
            mine.append(job)
    if not mine:
        text = f"no AdapterJob is of pool {pool.key}; {len(notes)} of other pools are here (--pool NAMESPACE/NAME)"
        raise RefusalError(Reason.INVALID_SPEC, text)
    return PoolSelection(pool, tuple(mine), tuple(notes))


def _choose(pools: list[BaseModelPool], name: str | None) -> BaseModelPool:
    names = ", ".join(pool.key for pool in pools) or "none"
    chosen = [pool for pool in pools if name in (None, pool.key, pool.metadata.name)]
    if not chosen:
        raise RefusalError(Reason.POOL_NOT_FOUND, f"want a BaseModelPool{f' {name}' if name else ''}, found {names}")
    if len(chosen) > 1:
        text = f"several BaseModelPools are here ({names}), and a run is of one; choose it with --pool NAMESPACE/NAME"
        raise RefusalError(Reason.INVALID_SPEC, text)
    return chosen[0]
