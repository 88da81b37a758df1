"""What is done inside the node's namespaces before anything runs there.

The node sees the machine's files, but its own processes, network devices and mounts. So that nothing it does
outlives it or shows outside, what it writes to fixed places goes into its own folder or into memory.
"""

import socket
import subprocess
import time
from pathlib import Path

from cluster.folders import ClusterFolder
from cluster.slot import SERVICE_RANGE
from cluster.spec import ClusterSpec

NODE_DEVICE = "eth0"
DEVICE_TIMEOUT_SECONDS = 10.0

# Below these, Kubernetes and the network plugins write to fixed places whatever they are told
# (/var/lib/kubelet/device-plugins, /var/lib/cni, /var/log/containers).
OVERLAID = ("/var/lib", "/var/log")

# Kernel settings of the whole machine that a kubelet insists on. It reads and writes a file in their place,
# which already says what it wants: a test must not make a developer's machine reboot on a kernel fault.
MACHINE_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}

# Settings of this network namespace alone.
NETWORK_SETTINGS = {"net/ipv4/ip_forward": "1"}


def prepare_inside(folder: ClusterFolder, spec: ClusterSpec) -> None:
    """Prepare mounts, settings and addresses. Must run as root in the namespaces of the node."""
    _prepare_mounts(folder, spec)
    _prepare_settings(folder)
    _prepare_addresses(spec)


def _prepare_mounts(folder: ClusterFolder, spec: ClusterSpec) -> None:
    _run("mount", "--make-rshared", "/")  # what the kubelet mounts must show in containers that ask for it
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "node-run", "/run")
    if spec.images_in_memory:
        folder.containerd_root.mkdir()
        _run("mount", "-t", "tmpfs", "-o", "mode=711", "node-images", str(folder.containerd_root))
    for place in OVERLAID:
        upper, work = (folder.data / "overlaid" / place.lstrip("/") / layer for layer in ("upper", "work"))
        upper.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir={place},upperdir={upper},workdir={work}"
        _run("mount", "-t", "overlay", "-o", options, "node-overlay", place)


def _prepare_settings(folder: ClusterFolder) -> None:
    for setting, value in MACHINE_SETTINGS.items():
        own = folder.data / "settings" / setting
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(f"{value}\n")
        _run("mount", "--bind", str(own), f"/proc/sys/{setting}")
    for setting, value in NETWORK_SETTINGS.items():
        Path("/proc/sys", setting).write_text(value)


def _prepare_addresses(spec: ClusterSpec) -> None:
    _run("ip", "link", "set", "lo", "up")
    _wait_for_device()
    _run("ip", "address", "add", f"{spec.slot.node_address}/30", "dev", NODE_DEVICE)
    _run("ip", "link", "set", NODE_DEVICE, "up")
    # A pod on the node's own network may use service addresses: the kernel looks for a route before
    # kube-proxy's rules see the packet, and there is no default route, since nothing leaves this machine.
    _run("ip", "route", "add", SERVICE_RANGE, "dev", NODE_DEVICE, "src", spec.slot.node_address)


def _wait_for_device() -> None:
    """Wait until the keeper has put the link in; /sys is the machine's and would not show it."""
    deadline = time.monotonic() + DEVICE_TIMEOUT_SECONDS
    while NODE_DEVICE not in (name for _, name in socket.if_nameindex()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"network device {NODE_DEVICE} did not come within {DEVICE_TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.02)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
