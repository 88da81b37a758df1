"""A real trainer service in a process of its own on loopback, and a client for its control port."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from builders.run_dir import RunDirectory
from multigraft.manifests.load import load_manifests

TOKEN = "canary-token-123-of-the-control-port"
POOL_UID = "pool-uid-1"
DEADLINE_SECONDS = 120.0

_context = get_context("forkserver")  # a server with torch imported forks each service in milliseconds
_context.set_forkserver_preload(["builders.trainer_service", "multigraft_trainer.service.process"])


@dataclass
class Answer:
    """What the control port said."""

    status: int
    headers: dict[str, str]
    body: Any


@dataclass
class TrainerService:
    """One pod's trainer: start it, call it, kill it, start it again on the same folders."""

    folder: Path
    base: Path
    pool: dict[str, Any] = field(default_factory=dict)
    pod: str = "tiny-cpu-0"
    process: Any = None
    port: int = 0
    metrics_port: int = 0

    def __post_init__(self) -> None:
        self.directory = RunDirectory(self.folder / "storage", base=self.base, **self.pool)
        manifest = json.loads((self.folder / "storage" / "pool.json").read_text())
        manifest["metadata"]["uid"] = POOL_UID
        self.pool_file = self.folder / "pool.json"
        self.pool_file.write_text(json.dumps(manifest))
        self.token_file = self.folder / "token"
        self.token_file.write_text(TOKEN + "\n")
        self.log = self.folder / "log.jsonl"

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        self.port, self.metrics_port = find_free_port(), find_free_port()
        self.process = _context.Process(target=_serve, args=(self.arguments(), str(self.log)))
        self.process.start()
        wait_for(lambda: self.try_call("GET", "/readyz") == 200)

    def arguments(self) -> list[str]:
        options = {
            "pool-file": self.pool_file,
            "pod-name": self.pod,
            "token-file": self.token_file,
            "storage-root": self.folder / "storage",
            "output-root": self.folder / "output",
            "cache-dir": self.folder / "cache",
            "state-dir": self.folder / "state",
            "host": "127.0.0.1",
            "control-port": self.port,
            "metrics-port": self.metrics_port,
            "linger-seconds": 0.5,
            "termination-log": self.folder / "termination-log",
        }
        return [part for name, value in options.items() for part in (f"--{name}", str(value))]

    def stop(self) -> int:
        """Send SIGTERM and give the exit code."""
        os.kill(self.process.pid, signal.SIGTERM)
        return self.wait()

    def kill(self) -> int:
        """Send SIGKILL and give the exit code."""
        os.kill(self.process.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        self.process.join(DEADLINE_SECONDS)
        assert self.process.exitcode is not None, "the service did not end"
        return int(self.process.exitcode)

    def call(
        self, method: str, path: str, body: bytes | None = None, *, authorization: str | None = f"Bearer {TOKEN}"
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {"Authorization": authorization} if authorization is not None else {}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            text = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return Answer(response.status, dict(response.headers), json.loads(text) if is_json else text)
        finally:
            connection.close()

    def try_call(self, method: str, path: str) -> int | None:
        if not self.process.is_alive():
            raise AssertionError(f"the service ended with {self.process.exitcode}:\n{self.log.read_text()[-3000:]}")
        try:
            return self.call(method, path).status
        except OSError:
            return None

    def put(self, *jobs: dict[str, Any], epoch: int = 1, **changes: Any) -> Answer:
        return self.call("PUT", "/v1/assignments", build_set(*jobs, epoch=epoch, **changes))

    def state(self) -> Any:
        answer = self.call("GET", "/v1/state")
        assert answer.status == 200, answer
        return answer.body

    def report(self, name: str) -> dict[str, Any]:
        """Give what is told of a job; empty if nothing is."""
        found = [job for job in self.state()["jobs"] if job["name"] == name]
        return found[-1] if found else {}

    def wait_for_phase(self, name: str, *phases: str) -> dict[str, Any]:
        """Wait until the job is in one of the phases."""
        return wait_for(
            lambda: (found := self.report(name)).get("phase") in phases and found, what=lambda: self.state()
        )

    def wait_for_step(self, name: str, step: int) -> None:
        """Wait until the job took so many steps."""
        wait_for(lambda: self.report(name).get("step", 0) >= step, what=lambda: self.state())

    def job(self, name: str, *, uid: str | None = None, rows: Any = None, **options: Any) -> dict[str, Any]:
        """Write a job's rows and give its assignment."""
        path = self.folder / "storage" / f"job-{name}.json"
        self.directory.add_job(name, rows=rows, **options)
        job = load_manifests([path]).jobs[0]
        path.unlink()
        spec = job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {
            "id": {"namespace": job.metadata.namespace, "name": name, "uid": uid or f"{name}-uid-1"},
            "generation": 1,
            "spec": spec,
        }

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "output" / "adapters" / "default" / name / "adapter_model.safetensors")

    def events(self) -> list[dict[str, Any]]:
        """Give every line of the log, each JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def build_set(*jobs: dict[str, Any], epoch: int = 1, **changes: Any) -> bytes:
    """Build the body of a desired set."""
    pool = {"namespace": "default", "name": "tiny", "uid": POOL_UID}
    return json.dumps({"epoch": epoch, "pool": pool, "jobs": list(jobs), **changes}).encode()


def find_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(condition: Any, what: Any = lambda: "") -> Any:
    """Wait until the condition gives something true, and give it."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < end, f"waited in vain: {what()}"
        time.sleep(0.02)
    return found


def _serve(arguments: list[str], log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    torch.set_num_threads(1)
    from multigraft_trainer.service.command import trainer

    trainer.main(arguments)
