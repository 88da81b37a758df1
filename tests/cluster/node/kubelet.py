"""The kubelet: starts the pods of the one node."""

import json

from cluster.control_plane.components import flags
from cluster.folders import ClusterFolder
from cluster.keep.component import Component
from cluster.keep.probes import Answers
from cluster.slot import DNS_SERVICE_ADDRESS
from cluster.spec import ClusterSpec

HEALTH_PORT = 10248


def build_kubelet(folder: ClusterFolder, spec: ClusterSpec) -> Component:
    """Build the component; `write_kubelet_config` must have been called."""
    command = flags(
        config=folder.config / "kubelet.json",
        hostname_override=spec.node_name,
        kubeconfig=folder.kubeconfig_of("kubelet"),
        node_ip=spec.slot.node_address,
        root_dir=folder.data / "kubelet",
    )
    ready = Answers(f"http://{spec.local_address}:{HEALTH_PORT}/healthz")
    return Component("kubelet", 2, (spec.programs.path("kubelet"), *command), ready)


def write_kubelet_config(folder: ClusterFolder, spec: ClusterSpec) -> None:
    """Write the kubelet's configuration and the resolver's, which knows no name server of the machine's."""
    (folder.config / "resolv.conf").write_text("")
    (folder.config / "kubelet.json").write_text(json.dumps(build_kubelet_config(folder, spec), indent=1))


def build_kubelet_config(folder: ClusterFolder, spec: ClusterSpec) -> dict[str, object]:
    """Return a KubeletConfiguration."""
    certificates = folder.certificates
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(certificates / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": spec.cgroup,
        "clusterDNS": [DNS_SERVICE_ADDRESS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{folder.containerd_socket}",
        # A developer's disk is often nearly full; a node that refuses pods for that would be no help.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "failCgroupV1": False,
        "failSwapOn": False,
        "healthzBindAddress": spec.local_address,
        "healthzPort": HEALTH_PORT,
        # Images come from archives and could not be pulled again: 100 turns their collection off.
        "imageGCHighThresholdPercent": 100,
        "nodeLeaseDurationSeconds": 8,
        "nodeStatusUpdateFrequency": "2s",
        "podLogsDir": str(folder.pod_logs),
        "resolvConf": str(folder.config / "resolv.conf"),
        "tlsCertFile": str(certificates / "kubelet.crt"),
        "tlsPrivateKeyFile": str(certificates / "kubelet.key"),
        "volumePluginDir": str(folder.data / "volume-plugins"),
    }
