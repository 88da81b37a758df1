"""The Kubernetes client for Python, pointed at a test cluster. In a file of its own: it takes a second to import."""

from collections.abc import Callable

import kubernetes.client
import kubernetes.config

from cluster.access import ClusterAccess


def open_client(cluster: ClusterAccess) -> kubernetes.client.ApiClient:
    """Return a client with the admin's rights. It is a context manager; leaving it closes its connections."""
    load: Callable[..., kubernetes.client.ApiClient] = kubernetes.config.new_client_from_config
    return load(config_file=str(cluster.kubeconfig))
