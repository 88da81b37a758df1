"""Find the programs of a cluster: the developer's own, or those that this project built."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from cluster.programs.build import ProgramsMissingError, built_folder, unbuilt_programs

API_SERVER_PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
NODE_PROGRAMS = (
    *API_SERVER_PROGRAMS,
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "coredns",
    "pause",
    "helm",
)


@dataclass(frozen=True)
class Programs:
    """A folder of programs."""

    folder: Path

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def path(self, name: str) -> str:
        """Return the path of a program.

        Raises:
            ProgramsMissingError: If it is neither in the folder nor, for the two clients, on the search path.
        """
        if self.has(name):
            return str(self.folder / name)
        found = shutil.which(name) if name in ("kubectl", "helm") else None
        if found is None:
            raise ProgramsMissingError(f"{name}: not in {self.folder}")
        return found


def locate_programs(wanted: tuple[str, ...]) -> Programs:
    """Return the programs of KUBEBUILDER_ASSETS where that is set, and else those built by this project.

    Raises:
        ProgramsMissingError: If one of `wanted` is missing; the text says how to get it.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    programs = Programs(Path(assets) if assets else built_folder())
    if assets:
        if missing := [name for name in wanted if not programs.has(name)]:
            raise ProgramsMissingError(f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(missing)}")
    elif missing := unbuilt_programs(programs.folder, wanted):
        raise ProgramsMissingError(f"{', '.join(missing)}: not built yet; run `python -m cluster build` in tests/")
    return programs
