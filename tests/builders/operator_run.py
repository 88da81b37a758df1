"""Run the operator as a process against a real API server, with pods that are only patched to run."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builders.fake_trainer import FakeTrainer
from cluster.access import ClusterAccess
from cluster.proxies import without_proxies

OPERATOR = Path(__file__).parents[2] / "operator"
TRAINER_ADDRESSES = (f"127.{a}.{b}.{c}" for a in range(90, 120) for b in range(1, 250) for c in range(1, 250))


def wait_until(check: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    """Wait until `check` gives something true, and give that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"after {seconds:.0f} s still not: {what}")


def find_free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


class OperatorRun:
    """One operator, its namespace and its fake trainers; a context manager."""

    def __init__(self, cluster: ClusterAccess, namespace: str, folder: Path, *, control_port: int = 0) -> None:
        self.cluster, self.namespace, self.folder = cluster, namespace, folder
        self.control_port, self.http_port = control_port or find_free_port(), find_free_port()
        self.trainers: dict[str, FakeTrainer] = {}  # by uid of the pod
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "key").write_bytes(b"k" * 32)

    def __enter__(self) -> OperatorRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for trainer in self.trainers.values():
            trainer.__exit__()
        for kind in ("adapterjob", "basemodelpool"):
            for item in self.list(kind):
                if item["metadata"].get("finalizers"):
                    self.remove_finalizers(kind, item["metadata"]["name"])

    def start(self, *options: str, kubeconfig: Path | None = None) -> None:
        """Start the operator process; like a restarted container, it takes its own Lease over."""
        command = [
            sys.executable, "-m", "multigraft_operator", "--key-file", str(self.folder / "key"),
            "--trainer-image", "localhost/multigraft/trainer:test", "--namespace", self.namespace,
            "--watch-namespace", self.namespace, "--control-port", str(self.control_port),
            "--http-port", str(self.http_port), "--poll-seconds", "0.3", "--relist-seconds", "5",
            "--reapply-seconds", "5", "--identity", "the-pod", *options,
        ]  # fmt: skip
        variables = without_proxies(self.cluster.environment()) | {"PYTHONPATH": str(OPERATOR)}
        if kubeconfig is not None:
            variables["KUBECONFIG"] = str(kubeconfig)
        with (self.folder / "operator.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, cwd=self.folder)

    def stop(self) -> int:
        """End it as the kubelet does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait_for_end(self) -> int:
        """Wait until it ends by itself; gives its exit code."""
        assert self._process is not None
        return self._process.wait(30)

    def start_again_if_ended(self) -> None:
        """Do as the kubelet does."""
        assert self._process is not None
        if self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    @property
    def log(self) -> str:
        return (self.folder / "operator.log").read_text()

    def fetch(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def is_ready(self) -> bool:
        """Tell whether /readyz says so."""
        try:
            return self.fetch("/readyz") == "ok\n"
        except OSError:
            return False

    # Objects.

    def kubectl(self, *arguments: str, text: str = "") -> str:
        return self.cluster.kubectl(f"--namespace={self.namespace}", *arguments, text=text)

    def create(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        metadata = {"name": name, "namespace": self.namespace}
        manifest = {"apiVersion": "multigraft.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
        self.kubectl("create", "--filename=-", text=json.dumps(manifest))

    def create_pool(self, name: str = "tiny", **spec: Any) -> None:
        base = {"baseModel": {"storageUri": "base"}, "gpu": {"accelerators": [{"name": "CPU"}]}}
        self.create("BaseModelPool", name, base | spec)

    def create_job(self, name: str = "a", **spec: Any) -> None:
        base: dict[str, Any] = {"dataset": {"storageUri": "rows.jsonl"}, "training": {"maxSteps": 10}}
        base |= {} if "poolSelector" in spec else {"poolRef": {"name": "tiny"}}
        self.create("AdapterJob", name, base | spec)

    def remove_finalizers(self, kind: str, name: str) -> None:
        """Let an object go whose operator is gone for good, as docs/operator.md says."""
        patch = json.dumps({"metadata": {"finalizers": None}})
        self.kubectl("patch", kind, name, "--type=merge", f"--patch={patch}")

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Read an object; {} if it is not there."""
        text = self.kubectl("get", kind, name, "--ignore-not-found", "--output=json")
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def list(self, kind: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "--output=json"))["items"]
        return items

    def phase(self, name: str = "a") -> str:
        return str((self.get("adapterjob", name).get("status") or {}).get("phase"))

    def condition(self, name: str, kind: str, of: str = "adapterjob") -> dict[str, Any]:
        conditions = (self.get(of, name).get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {})

    def wait_for_phase(self, phase: str, name: str = "a", seconds: float = 120.0) -> None:
        wait_until(lambda: self.phase(name) == phase, f"job {name} {phase}; log:\n{self._tail()}", seconds)

    def _tail(self) -> str:
        return self.log[-3000:] if (self.folder / "operator.log").exists() else ""

    # Pods.

    def run_pods(self, pool: str = "tiny", number: int = 1, slots: int = 2) -> list[FakeTrainer]:
        """Wait for the pods of a pool, give each a trainer, and say that they run."""
        selector = f"multigraft.dev/pool={pool}"

        def find() -> list[dict[str, Any]]:
            text = self.kubectl("get", "pods", f"--selector={selector}", "--output=json")
            pods = [pod for pod in json.loads(text)["items"] if "deletionTimestamp" not in pod["metadata"]]
            return pods if len(pods) >= number else []

        pods = wait_until(find, f"{number} pods of {pool}", 300)
        return [self._run_pod(pod, pool, slots) for pod in pods if pod["metadata"]["uid"] not in self.trainers]

    def _run_pod(self, pod: dict[str, Any], pool: str, slots: int) -> FakeTrainer:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        address = next(TRAINER_ADDRESSES)
        trainer = FakeTrainer(address, self.control_port, pod=name, pool=f"{self.namespace}/{pool}", slots=slots)
        trainer.__enter__()
        self.trainers[uid] = trainer
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        patch = json.dumps({"status": status})
        self.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", f"--patch={patch}")
        return trainer

    def uid(self, name: str = "a") -> str:
        return self.uid_of("adapterjob", name)

    def uid_of(self, kind: str, name: str) -> str:
        return str(self.get(kind, name)["metadata"]["uid"])
