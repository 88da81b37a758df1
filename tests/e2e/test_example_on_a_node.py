"""The chart and examples/02-cluster on a real node: from `helm install` to adapters, upgrade, rollback, uninstall."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from builders.example_cluster import (
    CHART,
    OPERATOR_IMAGE,
    POOLS,
    SYSTEM,
    TAG,
    TEAMS,
    TRAINER_IMAGE,
    VALUES,
    build_images,
    condition_of,
    explain,
    install,
    list_jobs,
    load_claims,
    make_volume,
    prepare,
    run_here,
    settled,
)
from builders.operator_run import wait_until
from builders.pool_run import measure_difference
from builders.prometheus_run import PrometheusRun
from cluster.access import ClusterAccess, CommandError
from cluster.fixtures import load_or_skip, skip_or_fail
from cluster.images.dockerfile import archive_of
from cluster.programs.build import ProgramsMissingError
from cluster.programs.prometheus import prometheus_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

TOLERANCE = 1e-5  # relative, over all tensors of an adapter, as in tests/exactness: neighbours come at other times here


@pytest.fixture
def programs() -> Path:
    """Give Prometheus; skip with the reason where it, or the images' dependencies, have not been built."""
    try:
        folder = prometheus_folder()
    except ProgramsMissingError as error:
        skip_or_fail(str(error))
    if not all(archive_of(f"{image}:{TAG}").exists() for image in (OPERATOR_IMAGE, TRAINER_IMAGE)):
        skip_or_fail("the images were never built; run `python -m cluster build` in tests/")
    return folder


def test_the_example_from_install_to_uninstall(node_cluster: ClusterAccess, programs: Path, tmp_path: Path) -> None:
    for archive in build_images():
        load_or_skip(node_cluster, archive)
    node_cluster.kubectl("create", "namespace", SYSTEM)
    node_cluster.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=restricted")
    example = prepare(tmp_path)
    try:
        install(node_cluster, tmp_path)
        with PrometheusRun(tmp_path / "prometheus", programs, node_cluster, CHART / "files" / "alerts.yaml") as seen:
            seen.start([*list_operators(node_cluster), *((team, f"{POOLS[team]}-cpu-0", 9090) for team in TEAMS)])
            jobs = run_the_example(node_cluster, example, tmp_path)
            check_metrics_format(node_cluster, programs)
            check_expressions(seen)
        check_adapters(jobs, example, tmp_path)
        check_operator_log(node_cluster)
        node_cluster.helm("test", "multigraft", f"--namespace={SYSTEM}", "--timeout=5m")
        check_upgrade_and_rollback(node_cluster, tmp_path)
        check_uninstall(node_cluster)
    except Exception as error:
        error.add_note(explain(node_cluster))
        raise
    finally:
        clean_up(node_cluster)


def list_operators(cluster: ClusterAccess) -> list[tuple[str, str, int]]:
    selector = "--selector=app.kubernetes.io/name=multigraft-operator"
    names = cluster.kubectl(
        "get", "pods", f"--namespace={SYSTEM}", selector, "--output=jsonpath={.items[*].metadata.name}"
    )
    return [(SYSTEM, name, 8081) for name in names.split()]


def run_the_example(cluster: ClusterAccess, example: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Do what the example's README says; the jobs at their end."""
    cluster.kubectl("apply", f"--filename={example / 'namespaces.yaml'}")
    for team in TEAMS:
        make_volume(cluster, team, folder / team)
    cluster.kubectl("apply", f"--filename={example / 'storage.yaml'}")
    load_claims(cluster, example)
    cluster.kubectl("apply", *(f"--filename={example / f'{team}.yaml'}" for team in TEAMS))
    jobs = wait_until(settled(cluster), "all six jobs have succeeded", 400)
    assert len(jobs) == 6
    for job in jobs.values():
        assert job["status"]["progress"]["step"] > 0
    return dict(jobs)


def check_adapters(jobs: dict[str, dict[str, Any]], example: Path, folder: Path) -> None:
    """The adapters on the claims are those of `multigraft run`, and PEFT loads them."""
    for team in TEAMS:
        run_here(example, team, folder / f"run-{team}")
    base = example / "prepared" / "base"
    clean = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    ids = torch.arange(32, 64)[None]
    with torch.no_grad():
        want_unlike = clean(ids).logits
    for key in jobs:
        team, name = key.split("/")
        (got_folder,) = {path.parent for path in (folder / team / "output").rglob(f"*/{name}/adapter_config.json")}
        want_folder = folder / f"run-{team}" / "adapters" / team / name
        got, want = (load_file(path / "adapter_model.safetensors") for path in (got_folder, want_folder))
        assert got.keys() == want.keys()
        assert measure_difference(got, want) < TOLERANCE, key
        model = peft.PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), got_folder
        )
        with torch.no_grad():
            assert not torch.allclose(model(ids).logits, want_unlike, atol=1e-4), key


def check_metrics_format(cluster: ClusterAccess, programs: Path) -> None:
    """I08: no duplicate series, right types and names, in the words of promtool."""
    pods = [*list_operators(cluster), *((team, f"{POOLS[team]}-cpu-0", 9090) for team in TEAMS)]
    for namespace, pod, port in pods:
        text = cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics")
        done = subprocess.run(
            (programs / "promtool", "check", "metrics"), input=text, capture_output=True, text=True, check=False
        )
        # prometheus_client's own `_created` gauges carry the name of their counter.
        said = [line for line in (done.stdout + done.stderr).splitlines() if line and "_created" not in line]
        assert said == [], pod


def check_expressions(seen: PrometheusRun) -> None:
    """Every panel had data, and every rule was evaluated without an error on metrics that exist."""
    empty = [panel for panel in read_panels() if not seen.find_series(panel[1])]
    assert empty == []
    rules = [rule for group in seen.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(read_alerts())
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    known = set(seen.ask("label/__name__/values"))
    named = {name for alert in read_alerts() for name in re.findall(r"multigraft_\w+", alert["expr"])}
    assert sorted(named - known) == []
    firing = [rule["name"] for rule in rules if rule["state"] == "firing"]
    assert firing == []


def read_panels() -> list[tuple[str, str]]:
    board = json.loads((CHART / "files" / "dashboard.json").read_text())
    found = []
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "1m")
            found.append((panel["title"], re.sub(r"\$(namespace|pool|job)", ".*", expression)))
    return found


def read_alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def check_operator_log(cluster: ClusterAccess) -> None:
    """I05: it has the rights that it uses. K08: its key is in no log."""
    log = cluster.kubectl(
        "logs", f"--namespace={SYSTEM}", "--selector=app.kubernetes.io/name=multigraft-operator", "--tail=-1"
    )
    assert "orbidden" not in log
    assert '"level": "error"' not in log


def take_stock(cluster: ClusterAccess) -> dict[str, str]:
    """Give what an upgrade must not touch: trainer pods, jobs, and the operator's key."""
    pods = cluster.kubectl(
        "get",
        "pods",
        "-A",
        "-l",
        "app.kubernetes.io/name=multigraft-trainer",
        "-o",
        "jsonpath={.items[*].metadata.uid}",
    )
    jobs = {key: job["metadata"]["resourceVersion"] for key, job in list_jobs(cluster).items()}
    key = cluster.kubectl("get", "secret", "multigraft-key", f"--namespace={SYSTEM}", "-o", "jsonpath={.data.key}")
    return {"pods": pods, "jobs": json.dumps(jobs, sort_keys=True), "key": key}


def check_upgrade_and_rollback(cluster: ClusterAccess, folder: Path) -> None:
    """H21, R1: another operator process, and nothing else changes."""
    before = take_stock(cluster)
    operators = list_operators(cluster)
    changed = {**VALUES, "operator": {**VALUES["operator"], "logLevel": "debug"}}
    install(cluster, folder, values=changed)
    wait_until(lambda: not {*operators} & {*list_operators(cluster)}, "the former operator pods are gone")
    assert take_stock(cluster) == before
    cluster.helm("rollback", "multigraft", f"--namespace={SYSTEM}", "--wait", "--timeout=3m")
    assert take_stock(cluster) == before


def check_uninstall(cluster: ClusterAccess) -> None:
    """I02: what users made stays, and so does the key; everything else of the release goes."""
    cluster.helm("uninstall", "multigraft", f"--namespace={SYSTEM}", "--wait", "--timeout=3m")
    assert len(list_jobs(cluster)) == 6
    assert all(condition_of(job, "Succeeded").get("status") == "True" for job in list_jobs(cluster).values())
    wait_until(lambda: list_what_is_left(cluster) == ["secret/multigraft-key"], "nothing but the key is left")


def list_what_is_left(cluster: ClusterAccess) -> list[str]:
    kinds = "all,secrets,roles,rolebindings,networkpolicies,poddisruptionbudgets"
    return cluster.kubectl("get", kinds, f"--namespace={SYSTEM}", "--output=name").split()


def clean_up(cluster: ClusterAccess) -> None:
    """Remove all of it; finalizers of jobs that are still loaded have nobody left to remove them."""
    gone = ("--ignore-not-found", "--wait=false")
    for kind in ("adapterjobs", "basemodelpools"):
        for team in TEAMS:
            names = cluster.kubectl("get", kind, f"--namespace={team}", "--ignore-not-found", "--output=name").split()
            for name in names:
                cluster.kubectl("delete", name, f"--namespace={team}", *gone)
                patch = '{"metadata":{"finalizers":null}}'
                with suppress(CommandError):  # gone already, as it should be
                    cluster.kubectl("patch", name, f"--namespace={team}", "--type=merge", f"--patch={patch}")
    cluster.kubectl("delete", "namespace", SYSTEM, *TEAMS, *gone)
    cluster.kubectl("delete", "pv", *(f"example-{team}" for team in TEAMS), *gone)
