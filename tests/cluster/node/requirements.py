"""What a machine must have to run a node, and what of it is missing."""

import os
import shutil

from cluster.folders import cache_root
from cluster.node.containerd import CNI_PLUGINS
from cluster.node.inside import OVERLAID

INSTALL = "run tests/kube/install-node-packages as root"
PROGRAMS = (
    "buildah",
    "conntrack",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "ip",
    "iptables",
    "nsenter",
    "runc",
    "socat",
    "tini",
    "unshare",
)
PLUGINS = ("host-local", "loopback", "portmap", "ptp")


def missing_for_node() -> str:
    """Return, as one sentence, what keeps this machine from running a node; empty if nothing does."""
    if os.geteuid() != 0:
        return "a node needs root (namespaces, mounts, control groups)"
    cache = cache_root().resolve()
    if hidden := [place for place in OVERLAID if cache.is_relative_to(place)]:
        return f"the cache folder {cache} is in {hidden[0]}, which a node lays its own files over: set XDG_CACHE_HOME"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    missing += [f"{CNI_PLUGINS}/{plugin}" for plugin in PLUGINS if not (CNI_PLUGINS / plugin).is_file()]
    return f"a node needs {', '.join(missing)}: {INSTALL}" if missing else ""
