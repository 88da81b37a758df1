"""A real API server, pools with fake trainers, many jobs, and the operator as a process, to be measured."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from kubernetes.aio import client, config

from builders.operator_run import OPERATOR, find_free_port
from cluster.access import ClusterAccess

TESTS = Path(__file__).resolve().parents[2]
CRDS = TESTS.parent / "crds"
GROUP, VERSION, NAMESPACE = "multigraft.dev", "v1alpha1", "load"
IN_FLIGHT = 32
CONDITION = {"status": "True", "reason": "Bare", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
BARE_STATUS = {"phase": "Pending", "conditions": [{**CONDITION, "type": f"Bare{number}"} for number in range(9)]}


class Trainers:
    """The process that serves all fake trainers."""

    def __init__(self, port: int, slots: int) -> None:
        command = [sys.executable, str(Path(__file__).with_name("serve_trainers.py")), str(port), str(slots)]
        environment = os.environ | {"PYTHONPATH": str(TESTS)}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, line: str = "") -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


class Operator:
    """The operator as a process."""

    def __init__(self, cluster: ClusterAccess, folder: Path, control_port: int) -> None:
        self._environment = cluster.environment() | {"PYTHONPATH": str(OPERATOR)}
        self._folder, self._control_port = folder, control_port
        self._http_port = find_free_port()
        (folder / "key").write_bytes(b"k" * 32)

    def start(self) -> None:
        command = [
            sys.executable, "-m", "multigraft_operator", "--key-file", str(self._folder / "key"),
            "--trainer-image", "localhost/multigraft/trainer:test", "--namespace", NAMESPACE, "--identity", "bench",
            "--control-port", str(self._control_port), "--http-port", str(self._http_port),
        ]  # fmt: skip
        with (self._folder / "operator.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def stop(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)
        self._process.wait(60)

    def read_metrics(self) -> dict[str, float]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/metrics", timeout=20) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in rows}

    def count_requests(self, *verbs: str) -> float:
        metrics = self.read_metrics()
        pattern = re.compile(rf'api_requests_total{{code="\d+",verb="({"|".join(verbs)})"}}')
        return sum(value for name, value in metrics.items() if pattern.search(name))

    def peak_mib(self) -> float:
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) / 1024  # type: ignore[index]

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Api:
    """Objects of the load, made and read through the asyncio client."""

    def __init__(self, cluster: ClusterAccess) -> None:
        self._cluster = cluster
        self._objects: Any = None

    async def __aenter__(self) -> Api:
        configuration = client.Configuration()
        await config.load_kube_config(str(self._cluster.kubeconfig), client_configuration=configuration)
        configuration.proxy = None
        self._client = client.ApiClient(configuration)
        self._objects = client.CustomObjectsApi(self._client)
        self._core = client.CoreV1Api(self._client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def create(self, kind: str, plural: str, name: str, spec: dict[str, Any]) -> None:
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name}, "spec": spec}
        await self._objects.create_namespaced_custom_object(GROUP, VERSION, NAMESPACE, plural, body)

    async def create_jobs(self, number: int, pools: int) -> None:
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def create(index: int) -> None:
            spec = {
                "poolRef": {"name": f"pool-{index % pools}"},
                "dataset": {"storageUri": f"rows-{index}.jsonl"},
                "training": {"maxSteps": 500},
            }
            async with gate:
                await self.create("AdapterJob", "adapterjobs", f"job-{index}", spec)

        await asyncio.gather(*(create(index) for index in range(number)))

    async def list_jobs(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        token = ""
        while True:
            page = await self._objects.list_namespaced_custom_object(
                GROUP, VERSION, NAMESPACE, "adapterjobs", limit=500, _continue=token
            )
            items += page["items"]
            token = page["metadata"].get("continue") or ""
            if not token:
                return items

    async def measure_bare_writes(self, number: int) -> float:
        """Write a status on so many jobs, as many at once as the operator does; gives writes per second."""
        gate = asyncio.Semaphore(IN_FLIGHT)
        names = [job["metadata"]["name"] for job in (await self.list_jobs())[:number]]

        async def write(name: str) -> None:
            async with gate:
                await self._objects.patch_namespaced_custom_object_status(
                    GROUP, VERSION, NAMESPACE, "adapterjobs", name, {"status": BARE_STATUS}
                )

        start = time.monotonic()
        await asyncio.gather(*(write(name) for name in names))
        return number / (time.monotonic() - start)

    async def wait_for_running(self, number: int, *, seconds: float) -> float:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            phases = [(job.get("status") or {}).get("phase") for job in await self.list_jobs()]
            if phases.count("Running") == number:
                return time.monotonic()
            await asyncio.sleep(3)  # a list of thousands costs the API server as much as a hundred writes
        raise RuntimeError(f"after {seconds:.0f} s only {phases.count('Running')} of {number} jobs run")

    async def run_pods(self, trainers: Trainers, number: int) -> None:
        """Wait for the pods of the pools, give each a trainer and an address, and say that they run."""
        while True:
            pods = (await self._core.list_namespaced_pod(NAMESPACE)).items
            if len(pods) >= number:
                break
            await asyncio.sleep(0.2)
        for index, pod in enumerate(pods):
            address = f"127.66.{index // 250}.{index % 250 + 1}"
            pool = pod.metadata.labels["multigraft.dev/pool"]
            trainers.ask(f"{address} {pod.metadata.name} {NAMESPACE}/{pool}")
            ready = [{"type": "Ready", "status": "True"}]
            status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready}
            await self._core.patch_namespaced_pod_status(pod.metadata.name, NAMESPACE, {"status": status})
