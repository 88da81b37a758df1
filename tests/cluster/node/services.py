"""Service addresses and service names: kube-proxy, CoreDNS and the objects that these need."""

import json

from cluster.control_plane.components import flags
from cluster.folders import ClusterFolder
from cluster.keep.component import Component
from cluster.keep.probes import Answers
from cluster.slot import DNS_SERVICE_ADDRESS, POD_RANGE
from cluster.spec import ClusterSpec

PROXY_HEALTH_PORT = 10256
DNS_READY_PORT = 8181


def build_services(folder: ClusterFolder, spec: ClusterSpec) -> tuple[Component, Component]:
    """Build both components; `write_services_config` must have been called."""
    proxy = flags(config=folder.config / "kube-proxy.json", hostname_override=spec.node_name)
    dns = ("-conf", str(folder.config / "Corefile"))
    return (
        Component(
            "kube-proxy",
            2,
            (spec.programs.path("kube-proxy"), *proxy),
            Answers(f"http://{spec.local_address}:{PROXY_HEALTH_PORT}/livez"),
        ),
        Component(
            "coredns",
            2,
            (spec.programs.path("coredns"), *dns),
            Answers(f"http://{spec.local_address}:{DNS_READY_PORT}/ready"),
        ),
    )


def write_services_config(folder: ClusterFolder, spec: ClusterSpec) -> None:
    """Write the configuration of kube-proxy and CoreDNS."""
    (folder.config / "kube-proxy.json").write_text(json.dumps(build_proxy_config(folder, spec), indent=1))
    (folder.config / "Corefile").write_text(build_corefile(folder, spec))


def build_proxy_config(folder: ClusterFolder, spec: ClusterSpec) -> dict[str, object]:
    """Return a KubeProxyConfiguration that leaves the kernel's connection-tracking limits as they are."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": spec.local_address,
        "clientConnection": {"kubeconfig": str(folder.kubeconfig_of("kube-proxy"))},
        "clusterCIDR": POD_RANGE,
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},
        "healthzBindAddress": f"{spec.local_address}:{PROXY_HEALTH_PORT}",
        "metricsBindAddress": f"{spec.local_address}:10249",
    }


def build_corefile(folder: ClusterFolder, spec: ClusterSpec) -> str:
    """Return CoreDNS's configuration: it answers for the cluster and refuses all other names."""
    return f"""\
.:53 {{
    bind {spec.slot.node_address}
    errors
    ready {spec.local_address}:{DNS_READY_PORT}
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {folder.kubeconfig_of("coredns")}
        pods insecure
        ttl 1
    }}
}}
"""


def build_dns_objects(spec: ClusterSpec) -> list[dict[str, object]]:
    """Return the service that pods find the name server by, as in other clusters; it runs on the node itself."""
    metadata: dict[str, object] = {"name": "kube-dns", "namespace": "kube-system"}
    ports = [{"name": f"dns-{protocol.lower()}", "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    service: dict[str, object] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"clusterIP": DNS_SERVICE_ADDRESS, "ports": ports},
    }
    slice_labels = {
        "kubernetes.io/service-name": "kube-dns",
        "endpointslice.kubernetes.io/managed-by": "multigraft-test-cluster",
    }
    endpoints: dict[str, object] = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**metadata, "labels": slice_labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [spec.slot.node_address], "conditions": {"ready": True}}],
        "ports": ports,
    }
    return [service, endpoints]
