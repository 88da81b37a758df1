"""What a cluster is to be, and what it is: the two files that its parts tell each other by."""

import json
import os
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from cluster.folders import ClusterFolder
from cluster.programs.locate import Programs
from cluster.slot import Slot


class Mode(StrEnum):
    """How much of a cluster there is."""

    API_SERVER = "api-server"  # store, API server, controllers: no root needed, no pod runs
    NODE = "node"  # all of it, with one real node


@dataclass(frozen=True)
class ClusterSpec:
    """What to start. Fixed for the life of a cluster.

    Attributes:
        keep: Whether it goes on when its last user has left.
        pause_archive: The image that the node needs before all others; empty without a node.
        images_in_memory: Whether the node keeps its images and containers' file systems in memory.
    """

    name: str
    mode: Mode
    slot_number: int
    programs_folder: str
    keep: bool
    pause_archive: str
    images_in_memory: bool

    @property
    def slot(self) -> Slot:
        return Slot(self.slot_number)

    @property
    def programs(self) -> Programs:
        return Programs(Path(self.programs_folder))

    @property
    def api_address(self) -> str:
        """Return the address that clients reach the API server at."""
        return self.slot.node_address if self.mode is Mode.NODE else self.slot.loopback

    @property
    def local_address(self) -> str:
        """Return the loopback address that the parts of the cluster listen on for each other."""
        return "127.0.0.1" if self.mode is Mode.NODE else self.slot.loopback

    @property
    def api_url(self) -> str:
        return f"https://{self.api_address}:6443"

    @property
    def node_name(self) -> str:
        return f"{self.name}-node"

    @property
    def cgroup(self) -> str:
        """Return the control group, below the root of each hierarchy, that all pods of the cluster are in."""
        return f"/multigraft-{self.name}"


class Phase(StrEnum):
    """How far a cluster has come."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class ClusterState:
    """What is known of a running cluster.

    Attributes:
        message: Why it failed.
        died: Parts that ended without having been told to, with their exit status.
        started_seconds: How long each stage of the start took.
    """

    phase: Phase = Phase.STARTING
    message: str = ""
    died: dict[str, int] = field(default_factory=dict)
    started_seconds: dict[str, float] = field(default_factory=dict)


def save_spec(folder: ClusterFolder, spec: ClusterSpec) -> None:
    _replace(folder.spec, json.dumps(asdict(spec), indent=1))


def load_spec(folder: ClusterFolder) -> ClusterSpec:
    content = json.loads(folder.spec.read_text())
    return ClusterSpec(**{**content, "mode": Mode(content["mode"])})


def save_state(folder: ClusterFolder, state: ClusterState) -> None:
    _replace(folder.state, json.dumps(asdict(state), indent=1))


def load_state(folder: ClusterFolder) -> ClusterState:
    """Return the state, which is `STARTING` as long as nothing has been said."""
    try:
        content = json.loads(folder.state.read_text())
    except FileNotFoundError:
        return ClusterState()
    return ClusterState(**{**content, "phase": Phase(content["phase"])})


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)
