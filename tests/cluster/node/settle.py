"""What makes a started node usable: its pause image, its name server, and the wait until it is Ready."""

import json
import os
import subprocess
from pathlib import Path

from cluster.folders import ClusterFolder
from cluster.node.services import build_dns_objects
from cluster.spec import ClusterSpec

READY_TIMEOUT_SECONDS = 90


def settle_node(folder: ClusterFolder, spec: ClusterSpec) -> None:
    """Return when pods can be started.

    Raises:
        subprocess.CalledProcessError: If a step fails or the node is not Ready in time; standard error says why.
    """
    load_image(folder.containerd_socket, Path(spec.pause_archive))
    objects = {"apiVersion": "v1", "kind": "List", "items": build_dns_objects(spec)}
    _kubectl(folder, spec, "apply", "--filename=-", text=json.dumps(objects))
    _wait(folder, spec, "create", f"node/{spec.node_name}")
    _wait(folder, spec, "condition=Ready", f"node/{spec.node_name}")
    _wait(folder, spec, "create", "serviceaccount/default")


def load_image(containerd_socket: Path, archive: Path) -> None:
    """Put the image of a docker-archive into containerd, where the kubelet finds it.

    Raises:
        subprocess.CalledProcessError: If containerd does not take it.
    """
    client = ("ctr", f"--address={containerd_socket}", "--namespace=k8s.io")
    subprocess.run((*client, "images", "import", str(archive)), check=True, capture_output=True, text=True)


def _wait(folder: ClusterFolder, spec: ClusterSpec, condition: str, target: str) -> None:
    _kubectl(folder, spec, "wait", f"--for={condition}", target, f"--timeout={READY_TIMEOUT_SECONDS}s")


def _kubectl(folder: ClusterFolder, spec: ClusterSpec, *arguments: str, text: str = "") -> None:
    environment = {**os.environ, "KUBECONFIG": str(folder.kubeconfig), "KUBECACHEDIR": str(folder.data / "kubectl")}
    command = (spec.programs.path("kubectl"), *arguments)
    subprocess.run(command, input=text, env=environment, check=True, capture_output=True, text=True)
