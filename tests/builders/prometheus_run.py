"""A real Prometheus that scrapes pods of a cluster, through the proxy of kubectl."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from builders.operator_run import find_free_port
from cluster.access import ClusterAccess

SCRAPE_SECONDS = 1


class PrometheusRun:
    """Prometheus with the chart's rules; a context manager."""

    def __init__(self, folder: Path, programs: Path, cluster: ClusterAccess, rules: Path) -> None:
        folder.mkdir()
        self._folder, self._programs, self._cluster, self._rules = folder, programs, cluster, rules
        self._proxy_port, self._port = find_free_port(), find_free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.started_at = time.time()

    def start(self, pods: list[tuple[str, str, int]]) -> None:
        """Start scraping pods, each given as (namespace, name, port); those that are not there yet are tried again."""
        config = {
            "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": "1s"},
            "rule_files": [str(self._rules)],
            "scrape_configs": [self._build_scrape(*pod) for pod in pods],
        }
        file = self._folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        proxy = (self._cluster.programs.path("kubectl"), "proxy", f"--port={self._proxy_port}")
        prometheus = (
            str(self._programs / "prometheus"), f"--config.file={file}", f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        )  # fmt: skip
        with (self._folder / "log").open("ab") as log:
            for command in (proxy, prometheus):
                environment = self._cluster.environment()
                self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    def _build_scrape(self, namespace: str, pod: str, port: int) -> dict[str, Any]:
        return {
            "job_name": f"{namespace}/{pod}",
            "honor_labels": True,  # as the chart's PodMonitor has it
            "metrics_path": f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics",
            "static_configs": [
                {"targets": [f"127.0.0.1:{self._proxy_port}"],
                 "labels": {"namespace": namespace, "pod": pod, "instance": pod}}
            ],
        }  # fmt: skip

    def __enter__(self) -> PrometheusRun:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(timeout=30)

    def ask(self, path: str, **parameters: str) -> Any:
        """Ask its HTTP API and return the data."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]

    def find_series(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate an expression over the whole run; no series means that it never had a value."""
        bounds = {"start": str(self.started_at), "end": str(time.time()), "step": "2"}
        return list(self.ask("query_range", query=expression, **bounds)["result"])
