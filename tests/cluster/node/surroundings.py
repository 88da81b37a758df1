"""The node's namespaces, seen from outside: made, linked to the machine, ended, and what is left removed.

The whole node is one PID namespace, so that it ends with its first process: the kernel then kills every
process in it (pods and containerd's shims too) and drops its mounts, network devices and packet filters.
"""

import subprocess
import time
from pathlib import Path

from cluster.node.cgroups import create_cgroup, remove_cgroup
from cluster.node.inside import NODE_DEVICE
from cluster.spec import ClusterSpec

CHILD_TIMEOUT_SECONDS = 5.0


def prepare_surroundings(spec: ClusterSpec) -> None:
    """Make what the node needs of the machine before it starts."""
    create_cgroup(spec.cgroup)


def enter_namespaces(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs `command` in new namespaces, in which every process ends when it ends.

    `tini` is the first process there: it takes in orphans, of which containerd's shims are full.
    """
    unshare = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    return (*unshare, "--propagation", "private", "tini", "--", *command)


def find_init(unshare_pid: int) -> int:
    """Return the PID, as the machine numbers it, of the first process of the namespaces.

    Raises:
        TimeoutError: If `unshare` has no child after five seconds.
    """
    children = Path(f"/proc/{unshare_pid}/task/{unshare_pid}/children")
    deadline = time.monotonic() + CHILD_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        pids = children.read_text().split()
        if pids:
            return int(pids[0])
        time.sleep(0.01)
    raise TimeoutError("no namespaces: unshare started no process")


def link_to_machine(spec: ClusterSpec, init_pid: int) -> None:
    """Put one end of a link into the node's network namespace and give the other end its address."""
    device = spec.slot.host_device
    peer = ("peer", "name", NODE_DEVICE, "netns", str(init_pid))
    _run("ip", "link", "add", device, "type", "veth", *peer)
    _run("ip", "address", "add", f"{spec.slot.host_address}/30", "dev", device)
    _run("ip", "link", "set", device, "alias", spec.name, "up")


def remove_surroundings(spec: ClusterSpec) -> None:
    """Remove what the end of the namespaces leaves: the control group and, if it is still there, the link.

    Raises:
        OSError: If a process is still in the control group.
    """
    # The kernel removes the link with the namespace, but a moment later; the next cluster may have this slot.
    subprocess.run(("ip", "link", "delete", spec.slot.host_device), check=False, capture_output=True)
    remove_cgroup(spec.cgroup)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
