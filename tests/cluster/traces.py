"""What a cluster would leave on the machine if its end were not clean: looked for from outside."""

import os
import shutil
import subprocess
from pathlib import Path

from cluster.keep.remains import MOUNTS, mounts_below
from cluster.node.cgroups import cgroup_roots
from cluster.own import OwnCluster
from cluster.slot import DEVICE_PREFIX


def find_processes(cluster: OwnCluster) -> dict[int, str]:
    """Return every process of a cluster: by its command line, which names the folder, or by its control group."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            groups = (process / "cgroup").read_text()
        except OSError:
            continue  # it has just ended
        if str(cluster.folder.root) in command or cluster.spec.cgroup in groups:
            found[int(process.name)] = command.strip()
    return found


def find_keeper(cluster: OwnCluster) -> int:
    """Return the PID of a cluster's keeper."""
    (pid,) = [pid for pid, command in find_processes(cluster).items() if "cluster.keep.keeper" in command]
    return pid


def find_traces(cluster: OwnCluster) -> list[str]:
    """Return all that is left of a cluster: processes, folders, mounts, control groups, network devices."""
    traces = [f"process {pid}: {command}" for pid, command in find_processes(cluster).items()]
    traces += [f"mount {point}" for point in mounts_below(cluster.folder.root, MOUNTS.read_text())]
    traces += [f"folder {path}" for path in (cluster.folder.root,) if path.exists()]
    groups = (root / cluster.spec.cgroup.lstrip("/") for root in cgroup_roots())
    traces += [f"control group {group}" for group in groups if group.exists()]
    traces += [f"device {line}" for line in _devices().splitlines() if f"alias {cluster.name}" in line]
    return traces


def machine_state() -> dict[str, str]:
    """Return what a node might change of the machine and must not: packet filters, devices, routes, settings."""
    settings = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
    state = {setting: Path("/proc/sys", setting).read_text() for setting in settings}
    places = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers", "/usr/libexec/kubernetes")
    state |= {place: str(Path(place).exists()) for place in places}
    state["filters"] = _rules()
    state["routes"] = _routes()
    return state


def _devices() -> str:
    return subprocess.run(("ip", "-oneline", "link"), check=True, capture_output=True, text=True).stdout


def _routes() -> str:
    routes = subprocess.run(("ip", "route"), check=True, capture_output=True, text=True).stdout
    # Another cluster's link may come or go meanwhile.
    return "\n".join(line for line in routes.splitlines() if DEVICE_PREFIX not in line)


def _rules() -> str:
    if os.geteuid() != 0 or shutil.which("iptables-save") is None:
        return ""  # then no node can run here
    saved = subprocess.run(("iptables-save",), check=True, capture_output=True, text=True).stdout
    return "\n".join(line for line in saved.splitlines() if line.startswith("-A"))
