"""Where things live on disk: one cache for what is built once, one folder for each running cluster."""

import os
from dataclasses import dataclass
from pathlib import Path


def cache_root() -> Path:
    """Return the folder of everything that may be deleted and made again, after the XDG base directory rules."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "multigraft"


def clusters_root() -> Path:
    """Return the folder that has one folder for each cluster that runs, and nothing else between runs."""
    return cache_root() / "clusters"


def clusters_lock() -> Path:
    """Return the lock under which folders of clusters are made, and those of abandoned ones removed."""
    return clusters_root() / ".lock"


@dataclass(frozen=True)
class ClusterFolder:
    """Everything one cluster writes. Removed whole when the cluster ends."""

    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def spec(self) -> Path:
        """What the cluster is to be; written once, before its keeper starts."""
        return self.root / "spec.json"

    @property
    def state(self) -> Path:
        """What the cluster is; replaced whole at each change."""
        return self.root / "state.json"

    @property
    def keeper_lock(self) -> Path:
        """Locked by the keeper as long as it lives: a free lock means that the cluster was abandoned."""
        return self.root / "keeper.lock"

    @property
    def users_lock(self) -> Path:
        """Locked in shared mode by every process that uses the cluster."""
        return self.root / "users.lock"

    @property
    def stop_request(self) -> Path:
        """Its presence asks the keeper to end the cluster."""
        return self.root / "stop"

    @property
    def init_pid(self) -> Path:
        """PID, as the machine numbers it, of the first process in the node's namespaces."""
        return self.root / "init.pid"

    @property
    def control_socket(self) -> Path:
        return self.root / "control"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def certificates(self) -> Path:
        return self.root / "certificates"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def containerd_root(self) -> Path:
        """Images, as they came and unpacked, and the file systems of containers."""
        return self.data / "containerd"

    @property
    def pod_logs(self) -> Path:
        return self.logs / "pods"

    @property
    def containerd_socket(self) -> Path:
        return self.root / "containerd.sock"

    def log_of(self, component: str) -> Path:
        return self.logs / f"{component}.log"

    def kubeconfig_of(self, component: str) -> Path:
        return self.config / f"{component}.kubeconfig"
