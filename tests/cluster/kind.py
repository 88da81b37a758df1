"""The same suite on kind, for machines that have Docker: E2E_CLUSTER=kind."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster.access import ClusterAccess, run_command
from cluster.folders import cache_root
from cluster.programs.build import built_folder
from cluster.programs.locate import Programs

START_TIMEOUT = "180s"


@dataclass(frozen=True)
class KindCluster(ClusterAccess):
    """A cluster in a Docker container."""

    def load_image(self, archive: Path) -> None:
        run_command(("kind", "load", "image-archive", str(archive), f"--name={self.name}"), self.environment())

    def collect_logs(self, target: Path) -> None:
        super().collect_logs(target)
        run_command(("kind", "export", "logs", str(target / "logs"), f"--name={self.name}"), self.environment())

    def end(self) -> None:
        """Delete the cluster."""
        run_command(("kind", "delete", "cluster", f"--name={self.name}"), self.environment())
        shutil.rmtree(self.scratch)


def missing_for_kind() -> str:
    """Return, as one sentence, what keeps kind from running here; empty if nothing does."""
    missing = [program for program in ("docker", "kind") if shutil.which(program) is None]
    if missing:
        return f"E2E_CLUSTER=kind needs {', '.join(missing)} on the search path"
    asked = subprocess.run(("docker", "info"), check=False, capture_output=True, text=True)
    return f"E2E_CLUSTER=kind: {asked.stderr.strip()}" if asked.returncode != 0 else ""


def start_kind(name: str) -> KindCluster:
    """Create a cluster with kind's default node image and return when its node is Ready.

    Raises:
        CommandError: If kind fails; the text has what it said.
    """
    scratch = cache_root() / "kind" / name
    scratch.mkdir(parents=True)
    kubeconfig = scratch / "kubeconfig"
    create = ("kind", "create", "cluster", f"--name={name}", f"--kubeconfig={kubeconfig}", f"--wait={START_TIMEOUT}")
    run_command(create, dict(os.environ))
    return KindCluster(name, kubeconfig, Programs(built_folder()), scratch)
