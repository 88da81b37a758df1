"""Who is who in a cluster: a certificate and a kubeconfig for each part that talks to the API server."""

import datetime
import json

from cluster.control_plane.certificates import Authority, Pair, Subject, write_token_keys
from cluster.folders import ClusterFolder
from cluster.slot import API_SERVICE_ADDRESS
from cluster.spec import ClusterSpec, Mode

API_SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    API_SERVICE_ADDRESS,
)


def write_identities(folder: ClusterFolder, spec: ClusterSpec, now: datetime.datetime) -> None:
    """Write every certificate, key and kubeconfig of a cluster."""
    authority = Authority(folder.certificates, now)
    write_token_keys(folder.certificates)
    addresses = (spec.api_address, spec.local_address)
    authority.issue("kube-apiserver", Subject("kube-apiserver", (), (*API_SERVER_NAMES, *addresses)))
    authority.issue("etcd", Subject("etcd", (), ("localhost", spec.local_address)))
    # What the API server shows to a kubelet, which lets this group read logs and start processes in pods.
    authority.issue("kube-apiserver-client", Subject("kube-apiserver-client", ("system:masters",)))
    # What the API server shows to an API server of somebody else's that it hands requests on to.
    authority.issue("front-proxy-client", Subject("front-proxy-client"))

    users = {
        "admin": Subject("admin", ("system:masters",)),
        "kube-controller-manager": Subject("system:kube-controller-manager"),
        "kube-scheduler": Subject("system:kube-scheduler"),
    }
    if spec.mode is Mode.NODE:
        node = Subject(f"system:node:{spec.node_name}", ("system:nodes",), (spec.node_name, spec.api_address))
        users |= {
            "kubelet": node,
            "kube-proxy": Subject("system:kube-proxy"),
            "coredns": Subject("coredns", ("system:masters",)),
        }
    for user, subject in users.items():
        pair = authority.issue(user, subject)
        path = folder.kubeconfig if user == "admin" else folder.kubeconfig_of(user)
        path.touch(mode=0o600)
        path.write_text(json.dumps(build_kubeconfig(spec.api_url, authority, user, pair), indent=1))


def build_kubeconfig(api_url: str, authority: Authority, user: str, pair: Pair) -> dict[str, object]:
    """Return a kubeconfig with one cluster, one user and one context."""
    name = "multigraft"
    client = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    server = {"server": api_url, "certificate-authority": str(authority.certificate)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": server}],
        "users": [{"name": user, "user": client}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }
