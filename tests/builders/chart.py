"""Render the chart with Helm, as objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from cluster.access import CommandError, run_command
from cluster.programs.locate import Programs

CHART = Path(__file__).parents[2] / "helm" / "multigraft"
KUBE_VERSION = "1.34"
RELEASE, NAMESPACE = "multigraft", "multigraft-system"
MONITORING = ("ServiceMonitor", "PodMonitor", "PrometheusRule")

Manifest = dict[str, Any]


class Chart:
    """The chart and the Helm that renders it."""

    def __init__(self, programs: Programs, scratch: Path) -> None:
        self.programs, self.scratch = programs, scratch

    def helm(self, *arguments: str) -> str:
        """Run Helm.

        Raises:
            CommandError: If it fails.
        """
        homes = {f"HELM_{name}_HOME": str(self.scratch / name) for name in ("CACHE", "CONFIG", "DATA")}
        return run_command((self.programs.path("helm"), *arguments), {**homes, "KUBECONFIG": "/dev/null"})

    def render_text(self, values: Manifest | None = None, *options: str, chart: Path = CHART) -> str:
        """Render the templates as YAML text."""
        given = self.scratch / "values.json"
        given.write_text(json.dumps(values or {}))
        where = (f"--namespace={NAMESPACE}", f"--kube-version={KUBE_VERSION}", f"--values={given}")
        return self.helm("template", RELEASE, str(chart), *where, *options)

    def render(self, values: Manifest | None = None, *options: str) -> list[Manifest]:
        """Render the templates as objects."""
        return [item for item in yaml.safe_load_all(self.render_text(values, *options)) if item]

    def refusal(self, values: Manifest) -> str:
        """Return what Helm says of values that it must refuse."""
        try:
            self.render(values)
        except CommandError as error:
            return str(error)
        raise AssertionError(f"these values were taken: {values}")


def find(objects: list[Manifest], kind: str, name: str = "") -> Manifest:
    """Find the one object of a kind, and of a name if there are several."""
    (found,) = [item for item in objects if item["kind"] == kind and name in {"", item["metadata"]["name"]}]
    return found


def kinds_of(objects: list[Manifest]) -> set[str]:
    """List the kinds."""
    return {item["kind"] for item in objects}


def pod_specs(objects: list[Manifest]) -> dict[str, Manifest]:
    """Give the pod specs among the objects, by kind of their object."""
    found = {}
    for item in objects:
        if item["kind"] == "Pod":
            found["Pod"] = item["spec"]
        elif "template" in item.get("spec", {}):
            found[item["kind"]] = item["spec"]["template"]["spec"]
    return found
