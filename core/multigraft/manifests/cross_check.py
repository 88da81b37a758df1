"""Check objects against one another: a job against its pool, a dataset against its ConfigMap."""

from __future__ import annotations

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.admission import check_job_against_pool, select_pools
from multigraft.manifests.collection import Manifests, Origin


def check_together(found: Manifests) -> None:
    """Add what is wrong between the objects to `problems`, and what cannot be known here to `notes`."""
    for job in found.jobs:
        origin = found.origins[("AdapterJob", job.key)]
        _check_pool(job, origin, found)
        _check_config_map(job, origin, found)


def _check_pool(job: AdapterJob, origin: Origin, found: Manifests) -> None:
    pools = select_pools(job, found.pools)
    if not pools:
        found.notes.append(origin.report_field(*_explain_absent_pool(job, found)))
        return
    refusals = [check_job_against_pool(job, pool) for pool in pools]
    if all(refusals):
        for refusal in refusals[0]:
            line = origin.document.line_of(tuple(refusal.field.split(".")))
            found.problems.append(origin.report_field(refusal.field, refusal.message, line))


def _explain_absent_pool(job: AdapterJob, found: Manifests) -> tuple[str, str]:
    if job.spec.pool_ref is None:
        return "spec.poolSelector", "no pool in these files matches; not checked against a pool"
    name = job.spec.pool_ref.name
    elsewhere = [pool.key for pool in found.pools if pool.metadata.name == name]
    hint = f" ({elsewhere[0]} is in another namespace, which a reference cannot reach)" if elsewhere else ""
    wanted = f"{job.metadata.namespace}/{name}"
    return "spec.poolRef.name", f"pool {wanted} is not in these files{hint}; not checked against it"


def _check_config_map(job: AdapterJob, origin: Origin, found: Manifests) -> None:
    reference = job.spec.dataset.config_map_ref
    if reference is None:
        return
    field = "spec.dataset.configMapRef"
    config_map = found.config_maps.get(f"{job.metadata.namespace}/{reference.name}")
    if config_map is None:
        message = f"ConfigMap {job.metadata.namespace}/{reference.name} is not in these files; not checked"
        found.notes.append(origin.report_field(field, message))
    elif reference.key not in config_map.files:
        keys = ", ".join(sorted(config_map.files)) or "none"
        message = f"key {reference.key} is not in ConfigMap {config_map.key}, which has {keys}"
        line = origin.document.line_of(("spec", "dataset", "configMapRef", "key"))
        found.problems.append(origin.report_field(f"{field}.key", message, line))
