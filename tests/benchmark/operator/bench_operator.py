"""Load on the operator: many jobs over many pools, on a real API server; `make bench-operator`.

Trainers are fake, but real HTTP servers behind the real control API. Measured: time until all jobs are placed, writes
per job, writes while nothing happens, memory, and time from a restart to steady state.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from load_world import CRDS, NAMESPACE, Api, Operator, Trainers  # noqa: E402

from builders.operator_run import find_free_port  # noqa: E402
from cluster.own import OwnCluster, start_cluster  # noqa: E402
from cluster.spec import Mode  # noqa: E402

RESULTS = ROOT / "docs" / "benchmarks"
IDLE_SECONDS = 60
LABELS = {
    "create_seconds": "all jobs created, no operator at work, s",
    "bare_writes_per_second": "bare loop: statuses written per second",
    "placed_seconds": "start of an operator that finds them, until the last is at its trainer, s",
    "running_seconds": "... until every status says Running, s",
    "object_writes_per_job": "writes of objects per job (finalizer, Admitted, Running; pools included)",
    "event_writes_per_job": "Events per job (SlotAssigned, Training)",
    "idle_writes_per_minute": "writes per minute while nothing happens (children applied again not counted)",
    "idle_cpu_percent": "CPU of the operator while nothing happens, % of a core",
    "peak_mib": "peak memory of the operator, MiB",
    "restart_seconds": "start of a process until it has heard of every trainer, s",
    "restart_writes": "writes in the 20 s after that (one for each pool: the new epoch)",
}
NOTES = """\
Trainers are fake (`tests/builders/operator_world.py`), but real HTTP servers behind the real control API. Everything
shares the same cores: API server, etcd, controllers, trainers and operator. *Bare loop* is a client that does nothing
but write statuses of nine conditions, 32 at once, as the operator does: what the API server can take here. A job costs
two writes before its trainer may be told (finalizer, then status), so half of it is the most jobs per second possible.
"""


@dataclass(frozen=True)
class Row:
    """What one number of jobs gave."""

    jobs: int
    pools: int
    create_seconds: float  # all jobs are created, with no operator at work
    bare_writes_per_second: float  # statuses of nine conditions, written by a bare loop
    placed_seconds: float  # from the start of an operator that finds them until the last one is at its trainer
    running_seconds: float  # ... until every status says Running
    object_writes_per_job: float  # statuses and finalizers
    event_writes_per_job: float
    idle_writes_per_minute: float
    idle_cpu_percent: float
    peak_mib: float
    restart_seconds: float  # from the start of a process until it has taken up all trainers
    restart_writes: float


async def measure(cluster: OwnCluster, folder: Path, *, jobs: int, pools: int) -> Row:
    cluster.kubectl("create", "namespace", NAMESPACE)
    control_port = find_free_port()
    trainers = Trainers(control_port, slots=min(256, jobs // pools + 8))
    operator = Operator(cluster, folder, control_port)
    try:
        async with Api(cluster) as api:
            return await _measure(api, operator, trainers, jobs=jobs, pools=pools)
    finally:
        operator.stop()
        trainers.end()


async def _measure(api: Api, operator: Operator, trainers: Trainers, *, jobs: int, pools: int) -> Row:
    operator.start()
    for index in range(pools):
        spec = {
            "baseModel": {"storageUri": "base"},
            "gpu": {"accelerators": [{"name": "CPU"}]},
            "slots": {"max": min(256, jobs // pools + 8)},
        }
        await api.create("BaseModelPool", "basemodelpools", f"pool-{index}", spec)
    await api.run_pods(trainers, pools)
    await asyncio.sleep(10)  # the pools settle
    operator.stop()
    start = time.monotonic()
    await api.create_jobs(jobs, pools)
    created = time.monotonic()
    bare = await api.measure_bare_writes(min(jobs, 1000))
    started = time.monotonic()
    operator.start()
    placed = await _wait_for_trainers(trainers, jobs)
    running = await api.wait_for_running(jobs, seconds=1200)
    more_writes, more_events = await _wait_for_quiet(operator)
    cpu = operator.cpu_seconds()
    await asyncio.sleep(IDLE_SECONDS)
    idle_writes, idle_events = _count_writes(operator)
    idle_cpu, peak = operator.cpu_seconds() - cpu, operator.peak_mib()
    operator.stop()
    restart_seconds, restart_writes = await _restart(operator, trainers, pools)
    return Row(
        jobs=jobs,
        pools=pools,
        create_seconds=round(created - start, 1),
        bare_writes_per_second=round(bare),
        placed_seconds=round(placed - started, 1),
        running_seconds=round(running - started, 1),
        object_writes_per_job=round(more_writes / jobs, 2),
        event_writes_per_job=round(more_events / jobs, 2),
        idle_writes_per_minute=(idle_writes - more_writes + idle_events - more_events) * 60 / IDLE_SECONDS,
        idle_cpu_percent=round(100 * idle_cpu / IDLE_SECONDS, 1),
        peak_mib=round(peak),
        restart_seconds=round(restart_seconds, 1),
        restart_writes=restart_writes,
    )


def _count_writes(operator: Operator) -> tuple[float, float]:
    """Count writes of objects, and Events told."""
    events = sum(
        v for name, v in operator.read_metrics().items() if name.startswith("multigraft_operator_events_total")
    )
    return operator.count_requests("PATCH", "POST", "DELETE"), events


async def _wait_for_quiet(operator: Operator) -> tuple[float, float]:
    """Wait until nothing was written for longer than quiet changes are held back; gives the writes until then."""
    before = (-1.0, -1.0)
    while (now := _count_writes(operator)) != before:
        before = now
        await asyncio.sleep(35)
    return now


async def _wait_for_trainers(trainers: Trainers, jobs: int) -> float:
    end = time.monotonic() + 600
    while time.monotonic() < end:
        told = trainers.ask()
        if told["ever"] == jobs:
            return float(told["last_new"])
        await asyncio.sleep(0.2)
    raise RuntimeError(f"only {told['ever']} of {jobs} jobs were placed")


async def _restart(operator: Operator, trainers: Trainers, pools: int) -> tuple[float, float]:
    before = trainers.ask()["calls"]
    start = time.monotonic()
    operator.start()
    while trainers.ask()["calls"] < before + pools:
        await asyncio.sleep(0.05)
    seconds = time.monotonic() - start
    await asyncio.sleep(20)
    return seconds, sum(_count_writes(operator))


def describe_machine() -> str:
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    kopf, client = version("kopf"), version("kubernetes")
    return (
        f"cpu {cpu}, cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f}, python {platform.python_version()}, "
        f"kopf {kopf}, kubernetes client {client}, Kubernetes and etcd of tests/kube on the same cores"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1000, 3000])
    parser.add_argument("--pools", type=int, default=20)
    parser.add_argument("--dry", action="store_true", help="Print, and write no page.")
    arguments = parser.parse_args()
    rows = []
    for jobs in arguments.jobs:
        cluster = start_cluster(Mode.API_SERVER, f"bench-{os.getpid()}-{jobs}")
        try:
            cluster.kubectl("apply", "--server-side", f"--filename={CRDS}")
            cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
            with tempfile.TemporaryDirectory() as folder:
                rows.append(asyncio.run(measure(cluster, Path(folder), jobs=jobs, pools=arguments.pools)))
        finally:
            cluster.leave()
        print(json.dumps(asdict(rows[-1]), indent=1), flush=True)
    if not arguments.dry:
        write_page(rows)


def write_page(rows: list[Row]) -> None:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    target, machine = RESULTS / f"operator_{today}", describe_machine()
    content = {"machine": machine, "rows": [asdict(row) for row in rows]}
    target.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    heads = ("", *(f"{row.jobs:,} jobs, {row.pools} pools" for row in rows))
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * len(rows)}"]
    for field in fields(Row)[2:]:
        values = (f"{getattr(row, field.name):,}" for row in rows)
        lines.append(f"| {LABELS[field.name]} | {' | '.join(values)} |")
    placed = (f"{row.jobs / row.placed_seconds:,.0f}" for row in rows)
    lines.append(f"| jobs placed per second, start of the process included | {' | '.join(placed)} |")
    text = (
        f"# Operator under load\n\n{today}. {machine}. Command: `make bench-operator`.\n{NOTES}\n"
        + "\n".join(lines)
        + "\n"
    )
    target.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
