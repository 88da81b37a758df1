"""The StatefulSet of a pool's trainers: restricted profile, read-only root, devices, whitelisted pod fields."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from multigraft.api.base_model_pool import Accelerator, BaseModelPoolSpec
from multigraft_operator.children import manifest, token
from multigraft_operator.children.labels import ACCELERATOR_LABEL, build_labels, build_metadata, child_name
from multigraft_operator.children.options import PRODUCTS, ChildOptions
from multigraft_operator.observed import PoolView

CONTAINER = "trainer"
POOL_FOLDER, TOKEN_FOLDER, SCRATCH_FOLDER = "/etc/multigraft/pool", "/etc/multigraft/token", "/tmp"  # noqa: S108
STORAGE_ROOT, OUTPUT_ROOT = "/data", "/output"
MANIFEST_ANNOTATION = "multigraft.dev/manifest-digest"
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def build_stateful_set(pool: PoolView, accelerator: Accelerator, options: ChildOptions) -> dict[str, Any]:
    """Build the StatefulSet of one kind of device; its readable spec gives the number of pods."""
    spec = _spec_of(pool)
    name = child_name(pool.key.name, accelerator.name.lower())
    labels = build_labels(pool) | {ACCELERATOR_LABEL: accelerator.name}
    metadata = build_metadata(pool, name)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata | {"labels": labels},
        "spec": {
            "serviceName": child_name(pool.key.name),
            "replicas": spec.replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": _build_pod_metadata(pool, labels, options),
                "spec": _build_pod_spec(pool, accelerator, options),
            },
        },
    }


def _spec_of(pool: PoolView) -> BaseModelPoolSpec:
    assert pool.spec is not None, "only of pools whose spec is readable"  # noqa: S101
    return pool.spec


def _build_pod_metadata(pool: PoolView, labels: dict[str, str], options: ChildOptions) -> dict[str, Any]:
    added = _spec_of(pool).template.metadata
    digest = hashlib.sha256(json.dumps(manifest.build_trainer_manifest(pool), sort_keys=True).encode()).hexdigest()
    kueue = {KUEUE_LABEL: options.kueue_queue} if options.kueue_queue else {}
    return {
        "labels": {**kueue, **added.labels, **labels},  # ours last: selectors and the NetworkPolicy read them
        "annotations": {**added.annotations, MANIFEST_ANNOTATION: digest[:16]},
    }


def _build_pod_spec(pool: PoolView, accelerator: Accelerator, options: ChildOptions) -> dict[str, Any]:
    spec = _spec_of(pool)
    template = spec.template.model_dump(mode="json", by_alias=True, exclude_none=True)
    built: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": max(1, spec.drain_timeout_seconds),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": options.user_id,
            "runAsGroup": options.user_id,
            "fsGroup": options.user_id,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": {**options.node_selector, **template["nodeSelector"]},
        "tolerations": template["tolerations"] + _build_tolerations(spec, accelerator),
        "containers": [_build_container(spec, accelerator, template, options)],
        "volumes": _build_volumes(pool, template, options),
    }
    affinity = _build_affinity(spec, accelerator)
    if affinity is not None:
        built["affinity"] = affinity
    for name in ("priorityClassName", "runtimeClassName", "schedulerName", "serviceAccountName", "imagePullSecrets"):
        if template.get(name):
            built[name] = template[name]
    return built


def _build_tolerations(spec: BaseModelPoolSpec, accelerator: Accelerator) -> list[dict[str, Any]]:
    if accelerator.name == "CPU":
        return []
    return [{"key": spec.gpu.resource_name, "operator": "Exists", "effect": "NoSchedule"}]


def _build_affinity(spec: BaseModelPoolSpec, accelerator: Accelerator) -> dict[str, Any] | None:
    """Want a node whose product is one of the accepted ones; shared and sliced devices have other names."""
    products = accelerator.products or list(PRODUCTS.get(accelerator.name, ()))
    if not products:
        return None
    wanted = {"key": spec.gpu.product_label, "operator": "In", "values": sorted(products)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _build_container(
    spec: BaseModelPoolSpec, accelerator: Accelerator, template: dict[str, Any], options: ChildOptions
) -> dict[str, Any]:
    probe = {"port": "control", "scheme": "HTTP"}
    return {
        "name": CONTAINER,
        "image": options.image,
        "imagePullPolicy": options.image_pull_policy,
        "command": ["python", "-m", "multigraft_trainer.service"],
        "env": _build_env(template, options),
        "envFrom": _build_env_sources(spec),
        "ports": [
            {"name": "control", "containerPort": options.control_port},
            {"name": "metrics", "containerPort": options.metrics_port},
        ],
        "resources": _build_resources(spec, accelerator, template, options),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "livenessProbe": {
            "httpGet": {"path": "/healthz", **probe},
            "initialDelaySeconds": 30,
            "periodSeconds": 15,
            "failureThreshold": 6,
        },
        "readinessProbe": {"httpGet": {"path": "/readyz", **probe}, "periodSeconds": 5},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _build_mounts(template),
    }


def _build_env(template: dict[str, Any], options: ChildOptions) -> list[dict[str, Any]]:
    own = {
        "MULTIGRAFT_POOL_FILE": f"{POOL_FOLDER}/{manifest.FILE}",
        "MULTIGRAFT_TOKEN_FILE": f"{TOKEN_FOLDER}/{token.FILE}",
        "MULTIGRAFT_STORAGE_ROOT": STORAGE_ROOT,
        "MULTIGRAFT_OUTPUT_ROOT": OUTPUT_ROOT,
        "MULTIGRAFT_CACHE_DIR": f"{SCRATCH_FOLDER}/multigraft/cache",
        "MULTIGRAFT_STATE_DIR": f"{SCRATCH_FOLDER}/multigraft/state",
        "MULTIGRAFT_CONTROL_PORT": str(options.control_port),
        "MULTIGRAFT_METRICS_PORT": str(options.metrics_port),
        "HOME": SCRATCH_FOLDER,
        "HF_HOME": f"{SCRATCH_FOLDER}/huggingface",
        "TRITON_CACHE_DIR": f"{SCRATCH_FOLDER}/triton",
    }
    pod_name = {"name": "MULTIGRAFT_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    taken = {*own, "MULTIGRAFT_POD_NAME"}
    added = [variable for variable in template["env"] if variable["name"] not in taken]
    return [pod_name, *({"name": name, "value": value} for name, value in own.items()), *added]


def _build_env_sources(spec: BaseModelPoolSpec) -> list[dict[str, Any]]:
    """Give the trainer the pool's credentials as variables: what fetches reads HF_TOKEN, AWS_* and the like itself."""
    secret = spec.base_model.secret_ref
    return [{"secretRef": {"name": secret.name}}] if secret is not None else []


def _build_resources(
    spec: BaseModelPoolSpec, accelerator: Accelerator, template: dict[str, Any], options: ChildOptions
) -> dict[str, Any]:
    """Build requests and limits: both are always there, since a namespace's quota may ask for them."""
    asked = template["resources"]
    limits = {"memory": options.memory_limit, **asked["limits"]}
    requests = {"cpu": options.cpu_request, "memory": options.memory_request, **asked["requests"]}
    limits.setdefault("cpu", requests["cpu"] if "cpu" in asked["requests"] else "16")
    if "memory" in asked["limits"] and "memory" not in asked["requests"]:
        requests["memory"] = asked["limits"]["memory"]
    if "memory" in asked["requests"] and "memory" not in asked["limits"]:
        limits["memory"] = asked["requests"]["memory"]
    if "cpu" in asked["limits"] and "cpu" not in asked["requests"]:
        requests["cpu"] = asked["limits"]["cpu"]
    if accelerator.name != "CPU":
        devices = {spec.gpu.resource_name: str(accelerator.count)}
        requests, limits = requests | devices, limits | devices
    return {"requests": requests, "limits": limits}


def _build_mounts(template: dict[str, Any]) -> list[dict[str, Any]]:
    added = template["volumeMounts"]
    taken = {mount["mountPath"].rstrip("/") for mount in added}
    own: list[dict[str, Any]] = [
        {"name": "multigraft-pool", "mountPath": POOL_FOLDER, "readOnly": True},
        {"name": "multigraft-token", "mountPath": TOKEN_FOLDER, "readOnly": True},
        {"name": "multigraft-scratch", "mountPath": SCRATCH_FOLDER},
        {"name": "multigraft-data", "mountPath": STORAGE_ROOT},
        {"name": "multigraft-output", "mountPath": OUTPUT_ROOT},
    ]
    replaceable = {SCRATCH_FOLDER, STORAGE_ROOT, OUTPUT_ROOT}
    fixed = {POOL_FOLDER, TOKEN_FOLDER}
    kept = [mount for mount in own if mount["mountPath"] not in replaceable & taken]
    return kept + [mount for mount in added if mount["mountPath"].rstrip("/") not in fixed]


def _build_volumes(pool: PoolView, template: dict[str, Any], options: ChildOptions) -> list[dict[str, Any]]:
    child = child_name(pool.key.name)
    volumes = [_name_secret(volume) for volume in template["volumes"]]
    return [
        {"name": "multigraft-pool", "configMap": {"name": child}},
        {"name": "multigraft-token", "secret": {"secretName": child, "defaultMode": 0o440}},
        {"name": "multigraft-scratch", "emptyDir": {"sizeLimit": options.cache_size}},
        {"name": "multigraft-data", "emptyDir": {}},
        {"name": "multigraft-output", "emptyDir": {}},
        *volumes,
    ]


def _name_secret(volume: dict[str, Any]) -> dict[str, Any]:
    return volume if "secret" not in volume else volume | {"secret": {**volume["secret"], "defaultMode": 0o440}}
