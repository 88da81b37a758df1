"""What the API server says of the rendered chart: every object is accepted, and the rights are what they should be."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import yaml

from builders.chart import Chart, find
from builders.operator_run import wait_until
from cluster.access import ClusterAccess

VARIANTS = [
    pytest.param({}, id="defaults"),
    pytest.param(
        {"operator": {"replicas": 1}, "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]}}, id="one"
    ),
    pytest.param(
        {
            "fullnameOverride": "lora",
            "operator": {
                "kueueQueue": "gpus",
                "tolerations": [{"operator": "Exists"}],
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
                ],
                "extraEnv": [{"name": "X", "value": "1"}],
                "extraVolumes": [{"name": "more", "emptyDir": {}}],
                "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
            },
            "commonLabels": {"team": "platform"},
            "imagePullSecrets": [{"name": "pull"}],
        },
        id="everything set",
    ),
]


@pytest.mark.parametrize("values", VARIANTS)
def test_H20_the_server_accepts_every_object(
    api_server: ClusterAccess, chart: Chart, namespace: Callable[..., str], values: dict[str, object]
) -> None:
    own = namespace(api_server, **{"pod-security.kubernetes.io/enforce": "restricted"})
    text = chart.render_text(values).replace("multigraft-system", own)
    objects = [item for item in yaml.safe_load_all(text) if item]
    accounts = [item for item in objects if item["kind"] == "ServiceAccount"]  # pods need theirs to be there
    api_server.kubectl("apply", "--filename=-", text=yaml.safe_dump_all(accounts))

    said = api_server.kubectl("apply", "--dry-run=server", "--validate=strict", "--filename=-", text=text)

    assert said.count("(server dry run)") == len(objects)


def test_S3_S5_the_operator_and_the_users_may_do_just_that(
    api_server: ClusterAccess, chart: Chart, namespace: Callable[..., str]
) -> None:
    own, tenant = namespace(api_server), namespace(api_server)
    text = chart.render_text({"watchNamespaces": [tenant]}).replace("multigraft-system", own)
    roles = [
        item
        for item in yaml.safe_load_all(text)
        if item and item["kind"] in {"Role", "RoleBinding", "ClusterRole", "ServiceAccount"}
        and "helm.sh/hook" not in item["metadata"].get("annotations", {})
    ]  # fmt: skip
    listed = {"apiVersion": "v1", "kind": "List", "items": roles}
    api_server.kubectl("apply", "--filename=-", text=json.dumps(listed))
    for role in ("edit", "view", "admin"):
        api_server.kubectl(
            "create", "rolebinding", role, f"--namespace={tenant}", f"--clusterrole={role}", f"--user={role}"
        )
    account = f"system:serviceaccount:{own}:{find(roles, 'ServiceAccount')['metadata']['name']}"

    def may(who: str, verb: str, what: str, where: str) -> bool:
        resource, _, group = what.partition(".")
        resource, _, subresource = resource.partition("/")
        asked = {"namespace": where, "verb": verb, "group": group, "resource": resource, "subresource": subresource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": who, "resourceAttributes": asked},
        }
        said = api_server.kubectl("create", "--filename=-", "--output=json", text=json.dumps(review))
        return bool(json.loads(said)["status"]["allowed"])

    try:
        assert may(account, "patch", "adapterjobs/status.multigraft.dev", tenant)
        assert may(account, "create", "secrets", tenant)
        assert may(account, "create", "leases.coordination.k8s.io", own)
        assert not may(account, "get", "secrets", tenant)
        assert not may(account, "list", "secrets", own)
        assert not may(account, "list", "adapterjobs.multigraft.dev", own)
        assert not may(account, "create", "pods", tenant)
        # The controller that adds roles to roles takes a moment.
        wait_until(lambda: may("edit", "create", "adapterjobs.multigraft.dev", tenant), "the role edit has ours")
        assert not may("edit", "create", "basemodelpools.multigraft.dev", tenant)
        assert may("admin", "create", "basemodelpools.multigraft.dev", tenant)
        assert may("view", "list", "adapterjobs.multigraft.dev", tenant)
        assert not may("view", "delete", "adapterjobs.multigraft.dev", tenant)
        assert not may("edit", "list", "adapterjobs.multigraft.dev", own)  # S12: another tenant's
    finally:
        cluster_wide = [f"clusterrole/{item['metadata']['name']}" for item in roles if item["kind"] == "ClusterRole"]
        api_server.kubectl("delete", *cluster_wide)
