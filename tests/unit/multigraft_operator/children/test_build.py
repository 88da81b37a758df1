"""What a pool becomes: names, labels, security, resources, secrets by reference."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from builders.operator_world import make_pool
from multigraft.api.base_model_pool import BaseModelPool
from multigraft_operator.children.build import build_children, find_digest
from multigraft_operator.children.labels import MAX_SET_NAME_CHARS, child_name, pool_label
from multigraft_operator.children.options import ChildOptions
from multigraft_operator.children.token import build_token
from multigraft_operator.observed import PoolView

KEY = b"k" * 32
LONG = "a" * 75
NAMES = ["a" * 63, "a" * 64, "b" * 200, "c" * 253, f"{LONG}-xx", f"{LONG}-yy", "with.dots", "with-dots", "short"]
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def build(pool: PoolView, **options: Any) -> dict[str, dict[str, Any]]:
    return {child["kind"]: child for child in build_children(pool, ChildOptions(**options), KEY)}


def pod_of(pool: PoolView, **options: Any) -> dict[str, Any]:
    template: dict[str, Any] = build(pool, **options)["StatefulSet"]["spec"]["template"]
    return template


def container_of(pool: PoolView, **options: Any) -> dict[str, Any]:
    (container,) = pod_of(pool, **options)["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize("name", NAMES)
def test_H01_names_and_labels_of_children_fit_whatever_the_pools_name(name: str) -> None:
    for child in build_children(make_pool(name), ChildOptions(), KEY):
        metadata = child["metadata"]
        assert len(metadata["name"]) <= MAX_SET_NAME_CHARS
        assert DNS_LABEL.fullmatch(metadata["name"])
        assert all(len(value) <= 63 for value in metadata["labels"].values())
        assert metadata["annotations"]["multigraft.dev/pool-name"] == name


def test_H01_children_of_different_pools_have_different_names() -> None:
    assert len({child_name(name) for name in NAMES}) == len(NAMES)
    assert len({pool_label(name) for name in NAMES}) == len(NAMES)


def test_children_go_with_their_pool() -> None:
    for child in build_children(make_pool(), ChildOptions(), KEY):
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("BaseModelPool", "tiny", True)


def test_the_stateful_set_is_last_and_carries_the_digest_of_all() -> None:
    children = build_children(make_pool(), ChildOptions(), KEY)
    assert children[-1]["kind"] == "StatefulSet"
    assert find_digest(children) == find_digest(build_children(make_pool(), ChildOptions(), KEY))
    assert find_digest(children) != find_digest(build_children(make_pool(), ChildOptions(image="other"), KEY))


def test_pods_pass_the_restricted_profile() -> None:
    pod = pod_of(make_pool())["spec"]
    container = container_of(make_pool())
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert all({"hostPath"}.isdisjoint(volume) for volume in pod["volumes"])


@pytest.mark.parametrize(
    "resources",
    [{}, {"requests": {"cpu": "500m"}}, {"limits": {"memory": "2Gi", "cpu": "1"}}, {"requests": {"memory": "96Gi"}}],
)
def test_H14_every_container_has_requests_and_limits(resources: dict[str, Any]) -> None:
    got = container_of(make_pool(template={"resources": resources}))["resources"]
    for kind in ("requests", "limits"):
        assert {"cpu", "memory"} <= set(got[kind])
    assert got["limits"] | resources.get("limits", {}) == got["limits"]
    assert got["requests"] | resources.get("requests", {}) == got["requests"]


def test_K09_no_secret_is_a_plain_value_in_a_pod() -> None:
    pool = make_pool()
    token = build_token(KEY, pool.uid)
    for kind, child in build(pool).items():
        told = json.dumps(child)
        assert token not in told
        assert (base64.b64encode(token.encode()).decode() in told) == (kind == "Secret")
    assert KEY.decode() not in json.dumps(build(pool))


def test_each_pool_has_a_token_of_its_own_which_stays() -> None:
    assert build_token(KEY, "a") == build_token(KEY, "a")
    assert build_token(KEY, "a") != build_token(KEY, "b")
    with pytest.raises(ValueError, match="got 5 bytes, want at least 32"):
        build_token(b"short", "a")


def test_a_gpu_pool_asks_for_devices_of_the_accepted_products_and_tolerates_their_taint() -> None:
    pool = make_pool(gpu={"accelerators": [{"name": "H100", "count": 2}, {"name": "L40S"}]})
    pod = pod_of(pool)["spec"]
    assert container_of(pool)["resources"]["limits"]["nvidia.com/gpu"] == "2"
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (wanted,) = terms[0]["matchExpressions"]
    assert wanted["key"] == "nvidia.com/gpu.product"
    assert "NVIDIA-H100-80GB-HBM3" in wanted["values"]
    assert not any("SHARED" in value or "MIG" in value for value in wanted["values"])
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]


def test_a_cpu_pool_asks_for_no_device() -> None:
    assert "nvidia.com/gpu" not in container_of(make_pool())["resources"]["limits"]
    assert "affinity" not in pod_of(make_pool())["spec"]


def test_the_template_is_merged_but_cannot_take_our_labels_or_settings() -> None:
    template = {
        "metadata": {"labels": {"team": "x", "multigraft.dev/pool": "stolen"}, "annotations": {"a": "b"}},
        "env": [{"name": "MULTIGRAFT_TOKEN_FILE", "value": "/tmp/mine"}, {"name": "HF_TOKEN_PATH", "value": "/t"}],
        "volumes": [{"name": "claims", "persistentVolumeClaim": {"claimName": "c"}}],
        "volumeMounts": [{"name": "claims", "mountPath": "/output"}],
        "priorityClassName": "high",
    }
    pod, container = pod_of(make_pool(template=template)), container_of(make_pool(template=template))
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["labels"]["multigraft.dev/pool"] == "tiny"
    assert pod["spec"]["priorityClassName"] == "high"
    values = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert values["MULTIGRAFT_TOKEN_FILE"] == "/etc/multigraft/token/token"
    assert any(variable["name"] == "HF_TOKEN_PATH" for variable in container["env"])
    assert [m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/output"] == ["claims"]


def test_pods_carry_the_queue_label_of_kueue_when_one_is_set() -> None:
    assert pod_of(make_pool(), kueue_queue="gpus")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert "kueue.x-k8s.io/queue-name" not in pod_of(make_pool())["metadata"]["labels"]


def test_the_trainers_manifest_is_a_valid_pool_with_its_uid() -> None:
    text = build(make_pool())["ConfigMap"]["data"]["pool.json"]
    pool = BaseModelPool.model_validate_json(text)
    assert pool.metadata.uid == "uid-team-a-tiny"


def test_a_change_that_trainers_do_not_read_restarts_no_pod() -> None:
    before = pod_of(make_pool())
    after = pod_of(make_pool(replicas=3, scheduling={"preemption": "Never"}, deletionPolicy="Block"))
    assert after == before
    assert pod_of(make_pool(slots={"max": 2})) != before


def test_only_the_operator_reaches_the_control_port() -> None:
    rules = build(make_pool(), operator_namespace="ops")["NetworkPolicy"]["spec"]["ingress"]
    control = [rule for rule in rules if rule["ports"][0]["port"] == "control"]
    (peer,) = control[0]["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "ops"}
    assert len(control) == 1


def test_a_pool_whose_spec_changed_has_other_children() -> None:
    pool = make_pool()
    assert pool.spec is not None
    more = replace(pool, spec=pool.spec.model_copy(update={"replicas": 4}))
    assert build(more)["StatefulSet"]["spec"]["replicas"] == 4


def test_the_pools_credentials_reach_the_trainer_as_variables_by_reference() -> None:
    pool = make_pool(baseModel={"storageUri": "hf://a/b", "secretRef": {"name": "hub"}})
    assert container_of(pool)["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert container_of(make_pool())["envFrom"] == []
