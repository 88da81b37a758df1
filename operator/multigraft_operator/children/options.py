"""What the installation says of trainer pods: images, ports and the like; the same for all pools."""

from __future__ import annotations

from dataclasses import dataclass, field

PRODUCTS = {
    "H100": ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL"),
    "H200": ("NVIDIA-H200",),
    "L40S": ("NVIDIA-L40S",),
    "A100": ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB", "NVIDIA-A100-80GB-PCIe"),
}
"""Values of the product label of NVIDIA's GPU feature discovery: the driver's name with dashes for blanks."""


@dataclass(frozen=True)
class ChildOptions:
    """Settings of all trainer pods."""

    image: str = "localhost/multigraft/trainer:latest"
    image_pull_policy: str = "IfNotPresent"
    control_port: int = 8080
    metrics_port: int = 9090
    operator_namespace: str = "multigraft-system"
    operator_labels: dict[str, str] = field(default_factory=lambda: {"app.kubernetes.io/name": "multigraft-operator"})
    kueue_queue: str = ""  # value of kueue.x-k8s.io/queue-name; empty: no label
    cpu_request: str = "1"
    memory_request: str = "4Gi"
    memory_limit: str = "64Gi"
    cache_size: str = "50Gi"
    user_id: int = 65532
    node_selector: dict[str, str] = field(default_factory=dict)
