"""What the chart renders: security, rights, switches, text that stays text."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from builders.chart import CHART, MONITORING, Chart, find, kinds_of, pod_specs

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).parents[1] / "cases"
EVERY_KIND = [f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in MONITORING]
DIGEST = "sha256:" + "ab" * 32


def test_H1_lint_finds_nothing(chart: Chart) -> None:
    assert "0 chart(s) failed" in chart.helm("lint", "--strict", str(CHART))


def test_H17_generated_files_are_up_to_date() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import chart_files
    finally:
        sys.path.pop(0)
    assert chart_files.find_stale(chart_files.build_files()) == []


@pytest.mark.parametrize(
    "values, named",
    [
        pytest.param({"bogus": 1}, "bogus", id="an unknown value"),
        pytest.param({"operator": {"replica": 1}}, "replica", id="an unknown value inside"),
        pytest.param({"image": {"tag": 6801028}}, "tag", id="a tag that is a number"),
        pytest.param({"image": {"tag": "a tag"}}, "tag", id="a tag that no registry has"),
        pytest.param({"image": {"digest": "sha256:12"}}, "digest", id="a digest cut short"),
        pytest.param({"watchNamespaces": ["Team_A"]}, "watchNamespaces", id="a namespace that cannot be"),
        pytest.param({"watchNamespaces": "team-a"}, "watchNamespaces", id="a namespace in place of a list"),
        pytest.param({"operator": {"userId": 0}}, "userId", id="root"),
        pytest.param({"metrics": {"monitors": True}}, "monitors", id="a switch of three that is given as two"),
        pytest.param({"trainer": {"controlPort": 70000}}, "controlPort", id="a port that cannot be"),
    ],
)
def test_H2_values_that_cannot_work_are_refused_by_name(chart: Chart, values: dict[str, object], named: str) -> None:
    assert named in chart.refusal(values)


def test_every_value_has_a_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def check(values: object, node: dict[str, object], path: str) -> list[str]:
        while "$ref" in node:
            node = schema["definitions"][str(node["$ref"]).rpartition("/")[2]]
        if not isinstance(values, dict) or "properties" not in node:
            return []
        known = node["properties"]
        assert node["additionalProperties"] is False, path
        missing = [f"{path}{name}" for name in values if name not in known]
        return missing + [
            line for name in values if name in known for line in check(values[name], known[name], f"{path}{name}.")
        ]

    assert check(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "") == []


@pytest.mark.parametrize("tag", (CASES / "I03" / "tags.txt").read_text().split())
def test_I03_a_tag_is_rendered_as_it_was_written_or_refused(chart: Chart, tag: str, tmp_path: Path) -> None:
    quoted = chart.render({"image": {"tag": tag}, "trainer": {"image": {"tag": tag}}})
    container = find(quoted, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"multigraft/operator:{tag}"
    assert f"--trainer-image=multigraft/trainer:{tag}" in container["args"]

    as_number = (CASES / "I03" / "values.yaml").read_text().replace("6801028", tag)
    (tmp_path / "unquoted.yaml").write_text(as_number)
    if isinstance(yaml.safe_load(as_number)["image"]["tag"], str):
        return
    with pytest.raises(Exception, match="tag"):
        chart.render({}, f"--values={tmp_path / 'unquoted.yaml'}")


def test_I04_an_app_version_like_a_number_stays_text(chart: Chart, tmp_path: Path) -> None:
    copy = tmp_path / "multigraft"
    shutil.copytree(CHART, copy)
    manifest = (copy / "Chart.yaml").read_text().replace('appVersion: "0.1.0"', 'appVersion: "72225e2"')
    (copy / "Chart.yaml").write_text(manifest)

    objects = [item for item in yaml.safe_load_all(chart.render_text({}, chart=copy)) if item]

    versions = {item["metadata"]["labels"].get("app.kubernetes.io/version") for item in objects}
    assert versions == {"72225e2"}
    assert find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":72225e2")


def test_S1_every_pod_fits_the_restricted_profile_and_has_a_read_only_root(chart: Chart) -> None:
    specs = pod_specs(chart.render())
    assert set(specs) == {"Deployment", "Pod"}
    for spec in specs.values():
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_H14_every_container_has_requests_and_limits(chart: Chart) -> None:
    for spec in pod_specs(chart.render()).values():
        for container in spec["containers"]:
            for part in ("requests", "limits"):
                assert set(container["resources"][part]) == {"cpu", "memory"}


def read_documented_rights() -> set[tuple[str, str, str, str]]:
    """Read the table of docs/operator.md as (where, group, resource, verb)."""
    table = (ROOT / "docs" / "operator.md").read_text().split("## Rights")[1].split("No wildcard")[0]
    found, where = set(), ""
    for line in table.splitlines()[4:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4:
            continue
        where = cells[0] or where
        groups, resources = cells[1].split(", "), re.sub(r"\(.*?\)", "", cells[2]).replace(" ", "").split(",")
        groups = ["" if group == "core" else group for group in groups]
        pairs = [*zip(groups, resources, strict=True)] if len(groups) > 1 else [(groups[0], each) for each in resources]
        for part in re.sub(r"\(.*?\)", "", cells[3]).split(";"):
            verbs, _, only = part.partition(" for ")
            for verb in verbs.replace(" ", "").split(","):
                found |= {(where, group, resource, verb) for group, resource in pairs if only.strip() in {"", resource}}
    return found


def test_S3_I05_the_rights_are_those_of_the_document_and_no_more(chart: Chart) -> None:
    objects = chart.render({"rbac": {"aggregate": False}})

    def rights(role: dict[str, object], where: str) -> set[tuple[str, str, str, str]]:
        return {
            (where, group, resource, verb)
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    cluster = find(objects, "ClusterRole")
    lease = find(objects, "Role", "multigraft-lease")
    got = rights(cluster, "watched namespaces") | rights(lease, "its own namespace")
    assert got == read_documented_rights()
    assert not any("*" in right for right in got)
    assert not any(right[2] == "secrets" and right[3] in {"get", "list", "watch"} for right in got)


def test_S4_with_named_namespaces_roles_in_them_suffice(chart: Chart) -> None:
    objects = chart.render({"watchNamespaces": ["team-a", "team-b"], "rbac": {"aggregate": False}})

    assert not {"ClusterRole", "ClusterRoleBinding"} & kinds_of(objects)
    roles = {item["metadata"]["namespace"] for item in objects if item["kind"] == "Role"}
    assert {"team-a", "team-b", "multigraft-system"} <= roles
    arguments = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--watch-namespace=team-a", "--watch-namespace=team-b"} <= set(arguments)
    assert find(objects, "Pod")["metadata"]["namespace"] == "team-a"


def test_H3_the_crds_are_those_of_the_project_with_a_switch_and_are_kept(chart: Chart) -> None:
    want = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")}
    crds = [item for item in chart.render() if item["kind"] == "CustomResourceDefinition"]

    assert {item["metadata"]["name"]: item["spec"] for item in crds} == {
        crd["metadata"]["name"]: crd["spec"] for crd in want.values()
    }
    assert all(item["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for item in crds)
    kept_by_nothing = chart.render({"crds": {"keep": False}})
    assert (
        "annotations" not in find(kept_by_nothing, "CustomResourceDefinition", "adapterjobs.multigraft.dev")["metadata"]
    )
    assert "CustomResourceDefinition" not in kinds_of(chart.render({"crds": {"install": False}}))


def test_H7_every_object_carries_the_standard_labels(chart: Chart) -> None:
    standard = {f"app.kubernetes.io/{name}" for name in ("name", "instance", "version", "managed-by", "part-of")}
    for item in chart.render({"commonLabels": {"team": "platform"}}, *EVERY_KIND):
        labels = item["metadata"]["labels"]
        assert standard | {"helm.sh/chart", "team"} <= set(labels), item["kind"]


def test_H8_pod_settings_reach_the_operator(chart: Chart) -> None:
    values = {
        "nameOverride": "lora",
        "imagePullSecrets": [{"name": "pull"}],
        "operator": {
            "podAnnotations": {"a": "b"},
            "podLabels": {"c": "d"},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "priorityClassName": "high",
            "extraEnv": [{"name": "X", "value": "1"}],
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        },
    }
    deployment = find(chart.render(values), "Deployment")
    template = deployment["spec"]["template"]
    spec, container = template["spec"], template["spec"]["containers"][0]
    assert deployment["metadata"]["name"] == "multigraft-lora"
    assert template["metadata"]["annotations"] == {"a": "b"}
    assert template["metadata"]["labels"]["c"] == "d"
    assert template["metadata"]["labels"]["app.kubernetes.io/name"] == "multigraft-operator"
    for name in ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName"):
        assert spec[name] == values["operator"][name]
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert {"name": "X", "value": "1"} in container["env"]
    assert {"name": "more", "mountPath": "/more"} in container["volumeMounts"]
    assert {"name": "more", "emptyDir": {}} in spec["volumes"]


def test_H9_a_digest_wins_over_the_tag(chart: Chart) -> None:
    image = {"registry": "registry.example:5000", "repository": "a/b", "tag": "1", "digest": DIGEST}
    got = find(chart.render({"image": image}), "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert got == f"registry.example:5000/a/b@{DIGEST}"


def test_H10_roles_and_account_can_be_left_to_others(chart: Chart) -> None:
    objects = chart.render({"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "mine"}})
    assert not {"ClusterRole", "ClusterRoleBinding"} & kinds_of(objects)
    assert find(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "mine"


def test_S5_users_roles_are_added_to_kubernetes_own(chart: Chart) -> None:
    objects = chart.render()
    prefix = "multigraft-system-multigraft"
    view, edit, admin = (find(objects, "ClusterRole", f"{prefix}-{role}") for role in ("view", "edit", "admin"))
    key = "rbac.authorization.k8s.io/aggregate-to-"
    assert {f"{key}{role}" for role in ("view", "edit", "admin")} <= set(view["metadata"]["labels"])
    assert f"{key}view" not in edit["metadata"]["labels"]
    assert f"{key}edit" not in admin["metadata"]["labels"]
    assert edit["rules"][0]["resources"] == ["adapterjobs"]
    assert all(set(rule["verbs"]) == {"get", "list", "watch"} for rule in view["rules"])


@pytest.mark.parametrize(
    "replicas, want", [pytest.param(1, False, id="one pod may go"), pytest.param(2, True, id="one of two stays")]
)
def test_S7_a_disruption_budget_only_where_it_lets_a_drain_go_on(chart: Chart, replicas: int, want: bool) -> None:
    objects = chart.render({"operator": {"replicas": replicas}})
    assert ("PodDisruptionBudget" in kinds_of(objects)) is want


@pytest.mark.parametrize("when", ["Auto", "Always", "Never"])
@pytest.mark.parametrize("there", [True, False])
def test_H11_monitors_and_rules_where_their_kinds_are_or_are_asked_for(chart: Chart, when: str, there: bool) -> None:
    values = {"metrics": {"monitors": when}, "alerts": {"rules": when}}
    objects = chart.render(values, *(EVERY_KIND if there else ()))
    want = set(MONITORING) if when == "Always" or (when == "Auto" and there) else set()
    assert kinds_of(objects) & set(MONITORING) == want


def test_H12_every_alert_has_a_runbook_that_exists(chart: Chart) -> None:
    rules = find(chart.render({}, *EVERY_KIND), "PrometheusRule")["spec"]["groups"]
    alerts = [rule for group in rules for rule in group["rules"]]
    assert len(alerts) > 10
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"docs/runbooks/{alert['alert']}.md"
        assert (ROOT / alert["annotations"]["runbook_url"]).is_file()
    served = chart.render({"alerts": {"runbookBaseUrl": "https://runbooks.example/"}}, *EVERY_KIND)
    first = find(served, "PrometheusRule")["spec"]["groups"][0]["rules"][0]
    assert first["annotations"]["runbook_url"] == f"https://runbooks.example/{first['alert']}.md"


def test_H13_the_dashboard_is_whole_and_its_first_row_says_what_counts(chart: Chart) -> None:
    values = {"dashboard": {"label": "board", "labelValue": "yes", "annotations": {"grafana_folder": "ML"}}}
    config_map = find(chart.render(values), "ConfigMap", "multigraft-dashboard")
    assert config_map["metadata"]["labels"]["board"] == "yes"
    assert config_map["metadata"]["annotations"] == {"grafana_folder": "ML"}
    board = json.loads(config_map["data"]["multigraft.json"])
    first_row = [panel["title"] for panel in board["panels"] if panel["gridPos"]["y"] == 1]
    assert first_row == ["Real tokens per second", "Bubble ratio", "Padding", "Slots"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_H15_no_webhook_is_needed(chart: Chart) -> None:
    assert not [kind for kind in kinds_of(chart.render()) if "Webhook" in kind]


def test_H16_hooks_have_a_weight_and_a_delete_policy(chart: Chart) -> None:
    hooks = [item for item in chart.render() if "helm.sh/hook" in item["metadata"].get("annotations", {})]
    assert {item["kind"] for item in hooks} == {"ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Pod"}
    for item in hooks:
        annotations = item["metadata"]["annotations"]
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
        assert annotations["helm.sh/hook-weight"] == ("0" if item["kind"] == "Pod" else "-1")


def test_a_key_of_ones_own_is_used_and_none_is_made(chart: Chart) -> None:
    objects = chart.render({"key": {"existingSecret": "mine"}})
    assert "Secret" not in kinds_of(objects)
    volumes = find(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["secret"]["secretName"] == "mine"


def test_a_made_key_is_long_enough_and_kept(chart: Chart) -> None:
    secret = find(chart.render(), "Secret")
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert len(secret["data"]["key"]) >= 64
