"""The parts of every cluster: store, API server and, where the programs are there, controllers and scheduler."""

from collections.abc import Iterator

from cluster.folders import ClusterFolder
from cluster.keep.component import Component
from cluster.keep.probes import Answers
from cluster.slot import POD_RANGE, SERVICE_RANGE
from cluster.spec import ClusterSpec, Mode

# A node that has stopped is noticed after 12 s and its pods are moved 10 s later. Kubernetes' own 50 s and
# 300 s are meant for networks that fail now and then; a test would wait for nothing.
NODE_GRACE_SECONDS = 12
NODE_MONITOR_SECONDS = 2
EVICTION_SECONDS = 10


def build_control_plane(folder: ClusterFolder, spec: ClusterSpec) -> Iterator[Component]:
    """Yield the components of the control plane."""
    yield build_etcd(folder, spec)
    yield build_api_server(folder, spec)
    if spec.programs.has("kube-controller-manager"):
        yield build_controller_manager(folder, spec)
    if spec.mode is Mode.NODE:
        yield build_scheduler(folder, spec)


def flags(**values: object) -> tuple[str, ...]:
    """Return command-line flags; an underscore stands for a dash, and None leaves a flag out."""
    given = {name.replace("_", "-"): value for name, value in values.items() if value is not None}
    return tuple(
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in given.items()
    )


def build_etcd(folder: ClusterFolder, spec: ClusterSpec) -> Component:
    """Build the store. It does not wait for the disk: its data need not outlive the machine's power."""
    client_url, peer_url = (f"https://{spec.local_address}:{port}" for port in (2379, 2380))
    certificate, key = (folder.certificates / f"etcd.{ending}" for ending in ("crt", "key"))
    authority = folder.certificates / "ca.crt"
    command = flags(
        name="etcd",
        data_dir=folder.data / "etcd",
        listen_client_urls=client_url,
        advertise_client_urls=client_url,
        listen_peer_urls=peer_url,
        initial_advertise_peer_urls=peer_url,
        initial_cluster=f"etcd={peer_url}",
        cert_file=certificate,
        key_file=key,
        trusted_ca_file=authority,
        client_cert_auth=True,
        peer_cert_file=certificate,
        peer_key_file=key,
        peer_trusted_ca_file=authority,
        peer_client_cert_auth=True,
        unsafe_no_fsync=True,
        log_level="warn",
    )
    ready = Answers(f"{client_url}/health", certificate, key)
    return Component("etcd", 0, (spec.programs.path("etcd"), *command), ready)


def build_api_server(folder: ClusterFolder, spec: ClusterSpec) -> Component:
    """Build the API server, with the admission and authorisation that a cluster has by default."""
    certificates = folder.certificates
    has_node = spec.mode is Mode.NODE
    command = flags(
        advertise_address=spec.api_address,
        allow_privileged=True,
        authorization_mode="Node,RBAC",
        bind_address="0.0.0.0" if has_node else spec.api_address,
        client_ca_file=certificates / "ca.crt",
        default_not_ready_toleration_seconds=EVICTION_SECONDS,
        default_unreachable_toleration_seconds=EVICTION_SECONDS,
        enable_admission_plugins="NodeRestriction",
        # Without a node nothing leads to the API server's service, and loopback is no address for an endpoint.
        endpoint_reconciler_type=None if has_node else "none",
        etcd_cafile=certificates / "ca.crt",
        etcd_certfile=certificates / "etcd.crt",
        etcd_keyfile=certificates / "etcd.key",
        etcd_servers=f"https://{spec.local_address}:2379",
        kubelet_certificate_authority=certificates / "ca.crt",
        kubelet_client_certificate=certificates / "kube-apiserver-client.crt",
        kubelet_client_key=certificates / "kube-apiserver-client.key",
        kubelet_preferred_address_types="InternalIP",
        profiling=False,
        proxy_client_cert_file=certificates / "front-proxy-client.crt",
        proxy_client_key_file=certificates / "front-proxy-client.key",
        requestheader_allowed_names="front-proxy-client",
        requestheader_client_ca_file=certificates / "ca.crt",
        requestheader_extra_headers_prefix="X-Remote-Extra-",
        requestheader_group_headers="X-Remote-Group",
        requestheader_username_headers="X-Remote-User",
        secure_port=6443,
        service_account_issuer="https://kubernetes.default.svc.cluster.local",
        service_account_key_file=certificates / "tokens.pub",
        service_account_signing_key_file=certificates / "tokens.key",
        service_cluster_ip_range=SERVICE_RANGE,
        # Time for open watches to end when it is told to stop; a real one waits a minute.
        shutdown_delay_duration="0s",
        tls_cert_file=certificates / "kube-apiserver.crt",
        tls_private_key_file=certificates / "kube-apiserver.key",
    )
    client = (certificates / "admin.crt", certificates / "admin.key")
    ready = Answers(f"{spec.api_url}/readyz", *client)
    return Component("kube-apiserver", 1, (spec.programs.path("kube-apiserver"), *command), ready)


def build_controller_manager(folder: ClusterFolder, spec: ClusterSpec) -> Component:
    """Build the controllers: namespaces, garbage collection, service accounts, workloads, node life cycle."""
    kubeconfig = folder.kubeconfig_of("kube-controller-manager")
    has_node = spec.mode is Mode.NODE
    command = flags(
        allocate_node_cidrs=has_node,
        authentication_kubeconfig=kubeconfig,
        authorization_kubeconfig=kubeconfig,
        bind_address=spec.local_address,
        cluster_cidr=POD_RANGE if has_node else None,
        cluster_signing_cert_file=folder.certificates / "ca.crt",
        cluster_signing_key_file=folder.certificates / "ca.key",
        # Given, since it is created if it is not there, and its default is in /usr.
        flex_volume_plugin_dir=folder.data / "volume-plugins",
        kubeconfig=kubeconfig,
        leader_elect=False,
        node_cidr_mask_size=24 if has_node else None,
        node_monitor_grace_period=f"{NODE_GRACE_SECONDS}s",
        node_monitor_period=f"{NODE_MONITOR_SECONDS}s",
        profiling=False,
        root_ca_file=folder.certificates / "ca.crt",
        service_account_private_key_file=folder.certificates / "tokens.key",
        use_service_account_credentials=True,
    )
    program = spec.programs.path("kube-controller-manager")
    ready = Answers(f"https://{spec.local_address}:10257/healthz")
    return Component("kube-controller-manager", 2, (program, *command), ready)


def build_scheduler(folder: ClusterFolder, spec: ClusterSpec) -> Component:
    """Build the scheduler."""
    kubeconfig = folder.kubeconfig_of("kube-scheduler")
    command = flags(
        authentication_kubeconfig=kubeconfig,
        authorization_kubeconfig=kubeconfig,
        bind_address=spec.local_address,
        kubeconfig=kubeconfig,
        leader_elect=False,
        profiling=False,
    )
    ready = Answers(f"https://{spec.local_address}:10259/healthz")
    return Component("kube-scheduler", 2, (spec.programs.path("kube-scheduler"), *command), ready)
