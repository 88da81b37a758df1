"""Which components a cluster has, and the files that they read."""

import datetime

from cluster.control_plane.components import build_control_plane
from cluster.control_plane.identities import write_identities
from cluster.folders import ClusterFolder
from cluster.keep.component import Component
from cluster.node.containerd import build_containerd, write_containerd_config
from cluster.node.kubelet import build_kubelet, write_kubelet_config
from cluster.node.services import build_services, write_services_config
from cluster.spec import ClusterSpec, Mode


def write_files(folder: ClusterFolder, spec: ClusterSpec, now: datetime.datetime) -> None:
    """Write all that the components read: certificates, kubeconfigs, configurations."""
    for path in (folder.config, folder.data, folder.logs, folder.pod_logs):
        path.mkdir(parents=True, exist_ok=True)
    write_identities(folder, spec, now)
    if spec.mode is Mode.NODE:
        write_containerd_config(folder)
        write_kubelet_config(folder, spec)
        write_services_config(folder, spec)


def build_components(folder: ClusterFolder, spec: ClusterSpec) -> list[Component]:
    """Return every component of the cluster."""
    components = list(build_control_plane(folder, spec))
    if spec.mode is Mode.NODE:
        components += [build_containerd(folder, spec), build_kubelet(folder, spec), *build_services(folder, spec)]
    return components
