"""The Kubernetes client for Python, pointed at a test cluster. In a file of its own: it takes a second to import."""

from collections.abc import Callable

import kubernetes.client
import kubernetes.config

from cluster.access import ClusterAccess
from cluster.proxies import without_proxies


def open_client(cluster: ClusterAccess) -> kubernetes.client.ApiClient:
    """Return a client with the admin's rights. It is a context manager; leaving it closes its connections."""
    load: Callable[..., kubernetes.client.ApiClient] = kubernetes.config.new_client_from_config
    configuration = kubernetes.client.Configuration()
    if without_proxies(cluster.environment()) == cluster.environment():
        configuration.proxy = None  # it has read this process's environment
    return load(config_file=str(cluster.kubeconfig), client_configuration=configuration)
