"""The container runtime: containerd with its own root, state and socket, beside any that the machine runs."""

import json
from pathlib import Path

from cluster.folders import ClusterFolder
from cluster.keep.component import Component
from cluster.keep.probes import Listens
from cluster.slot import POD_RANGE
from cluster.spec import ClusterSpec

PAUSE_IMAGE = "localhost/multigraft/pause:1"
CNI_PLUGINS = Path("/usr/lib/cni")  # where Debian's containernetworking-plugins puts them
# In the node's own /run, which nothing outside its namespaces sees and which ends with them.
STATE = Path("/run/containerd")


def build_containerd(folder: ClusterFolder, spec: ClusterSpec) -> Component:
    """Build the component; `write_containerd_config` must have been called."""
    command = ("containerd", "--config", str(folder.config / "containerd.toml"), "--log-level", "warn")
    return Component("containerd", 0, command, Listens(folder.containerd_socket))


def write_containerd_config(folder: ClusterFolder) -> None:
    """Write containerd's configuration and the pod network's."""
    networks = folder.config / "cni"
    networks.mkdir(parents=True, exist_ok=True)
    (networks / "10-pods.conflist").write_text(json.dumps(build_pod_network(), indent=1))
    (folder.config / "containerd.toml").write_text(build_containerd_config(folder, networks))


def build_containerd_config(folder: ClusterFolder, networks: Path) -> str:
    """Return the configuration file. A JSON string is a TOML string too, so that any path is safe in it."""
    quote = json.dumps
    return f"""\
version = 2
root = {quote(str(folder.containerd_root))}
state = {quote(str(STATE))}

[grpc]
address = {quote(str(folder.containerd_socket))}

[plugins."io.containerd.internal.v1.opt"]
path = {quote(str(folder.data / "containerd-opt"))}

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = {quote(PAUSE_IMAGE)}
# Where root lacks CAP_SYS_RESOURCE, runc may not lower the score of a sandbox and fails with
# "can't get final child's PID from pipe: EOF". Harmless elsewhere.
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {quote(str(CNI_PLUGINS))}
conf_dir = {quote(str(networks))}

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def build_pod_network() -> dict[str, object]:
    """Return the CNI configuration: each pod has a link of its own to the node.

    No bridge: between two pods of one bridge an answer would not pass the node's address translation, and a
    service whose pod is on the same node could not be reached unless the kernel filters bridged traffic.
    """
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{"subnet": POD_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{"type": "ptp", "ipMasq": False, "ipam": addresses}, ports],
    }
