"""The generated CRDs keep to facts that a cluster needs: checklist C1 to C21 of Kubernetes operators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from builders.crdcheck import CRDS, Request, ask
from builders.manifest_text import job_text, pool_text
from multigraft.api.conditions import JobCondition, PoolCondition
from multigraft.api.crd import build_crd, main, render_crds
from multigraft.api.resources import ADAPTER_JOB, BASE_MODEL_POOL, RESOURCES, Resource
from multigraft.manifests.yaml_reader import read_yaml
from multigraft.manifests.yaml_writer import write_yaml

by_kind = pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)


def schema_of(resource: Resource) -> dict[str, Any]:
    schema: dict[str, Any] = build_crd(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, schema) of everything below `spec` and `status`."""
    for name, inner in schema.get("properties", {}).items():
        if path or name in {"spec", "status"}:
            yield f"{path}.{name}", inner
            yield from walk(inner, f"{path}.{name}")
    for part in ("items", "additionalProperties"):
        if part in schema:
            yield f"{path}[]", schema[part]
            yield from walk(schema[part], f"{path}[]")


def offenders(resource: Resource, is_bad: Any) -> list[str]:
    return [path for path, schema in walk(schema_of(resource)) if is_bad(path, schema)]


def test_files_are_up_to_date() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in CRDS.glob("*.yaml")} == render_crds()


def test_the_api_server_takes_them() -> None:
    assert ask([]) == []  # structural, CEL compiles and is within budget, below 256 KiB (C1, C14, C21)


def test_the_check_of_crds_notices_a_broken_one(tmp_path: Path) -> None:
    crd = build_crd(ADAPTER_JOB)
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] = [
        {"rule": "self.noSuchField == 1"}
    ]
    (tmp_path / "crd.yaml").write_text(write_yaml(crd))
    with pytest.raises(ValueError, match="undefined field 'noSuchField'"):
        ask([], [tmp_path / "crd.yaml"])


@by_kind
def test_kubectl_and_python_read_the_same(resource: Resource) -> None:
    text = render_crds()[f"multigraft.dev_{resource.plural}.yaml"]
    assert read_yaml(text).value == build_crd(resource) == yaml.safe_load(text)


@by_kind
def test_every_field_has_a_description(resource: Resource) -> None:
    undescribed = offenders(resource, lambda path, schema: not path.endswith("[]") and not schema.get("description"))
    assert undescribed == []  # C10, C20


@by_kind
def test_every_list_and_map_and_text_is_bounded_and_every_list_says_its_type(resource: Resource) -> None:
    limits = {"array": "maxItems", "string": "maxLength"}

    def is_bad(_: str, schema: dict[str, Any]) -> bool:
        if schema.get("type") == "string" and ("enum" in schema or schema.get("format") == "date-time"):
            return False
        if schema.get("type") == "object":
            return ("properties" in schema) == ("additionalProperties" in schema) or (
                "additionalProperties" in schema and "maxProperties" not in schema
            )
        limit = limits.get(schema.get("type", ""))
        return (limit is not None and limit not in schema) or (
            schema.get("type") == "array" and "x-kubernetes-list-type" not in schema
        )

    assert offenders(resource, is_bad) == []  # C14


@by_kind
def test_no_fractions_and_no_open_ends(resource: Resource) -> None:
    assert offenders(resource, lambda _, schema: schema.get("type") == "number") == []  # C16
    assert offenders(resource, lambda _, schema: "x-kubernetes-preserve-unknown-fields" in schema) == []  # C1
    assert offenders(resource, lambda _, schema: schema.get("nullable")) == []


@by_kind
def test_names_keep_to_the_conventions(resource: Resource) -> None:
    def is_bad(path: str, schema: dict[str, Any]) -> bool:
        name = path.rpartition(".")[2].removesuffix("[]")
        options = schema.get("enum", [])
        return not re.fullmatch(r"[a-z][A-Za-z0-9]*", name) or any(not re.fullmatch(r"[A-Z]\w*", o) for o in options)

    assert offenders(resource, is_bad) == []  # C19
    units = ("timeout", "deadline", "ttl", "interval", "duration")
    times = [path for path, schema in walk(schema_of(resource)) if path.lower().rpartition(".")[2].startswith(units)]
    assert all(path.endswith(("Seconds", "SecondsAfterFinished", "Steps")) for path in times)  # C17


@by_kind
def test_K07_no_reference_has_a_namespace(resource: Resource) -> None:
    assert offenders(resource, lambda path, _: path.endswith(".namespace")) == []  # C18


def test_K05_no_field_turns_remote_code_on() -> None:
    for resource in RESOURCES:
        assert offenders(resource, lambda path, _: "remotecode" in path.lower()) == []


@by_kind
def test_conditions_are_a_map_by_type_with_the_standard_fields(resource: Resource) -> None:
    conditions = schema_of(resource)["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    fields = {"type", "status", "reason", "message", "lastTransitionTime", "observedGeneration"}
    assert set(conditions["items"]["properties"]) == fields
    assert set(conditions["items"]["required"]) == fields - {"observedGeneration"}  # C3
    assert "observedGeneration" in schema_of(resource)["properties"]["status"]["properties"]  # C4


def test_summary_conditions_exist() -> None:
    assert PoolCondition.READY == "Ready"  # C5, C6
    assert JobCondition.SUCCEEDED == "Succeeded"


def test_subresources() -> None:
    pool, job = (build_crd(resource)["spec"]["versions"][0]["subresources"] for resource in RESOURCES)
    assert job == {"status": {}}  # C2
    assert pool["scale"] == {  # C11
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


def test_names_in_kubectl() -> None:
    names = [build_crd(resource)["spec"]["names"] for resource in RESOURCES]
    assert [name["shortNames"] for name in names] == [["bmp"], ["aj"]]
    assert {name["categories"][0] for name in names} == {"multigraft"}  # C10


def test_columns() -> None:
    def column_names(resource: Resource, priority: int) -> list[str]:
        columns = build_crd(resource)["spec"]["versions"][0]["additionalPrinterColumns"]
        return [column["name"] for column in columns if column.get("priority", 0) <= priority]

    assert column_names(ADAPTER_JOB, 0) == ["State", "Reason", "Pool", "Step", "Age"]  # C8
    assert column_names(ADAPTER_JOB, 1) == ["State", "Reason", "Pool", "Pod", "Step", "Loss", "Priority", "Age"]
    assert column_names(BASE_MODEL_POOL, 0) == ["Model", "GPU", "Ready", "Slots", "Pending", "Age"]
    for resource in RESOURCES:  # C9: never "the last condition"
        assert not any("[-1" in column.json_path for column in resource.columns)


@by_kind
def test_columns_point_at_fields_that_exist(resource: Resource) -> None:
    known = {path.replace("[]", "") for path, _ in walk(schema_of(resource))} | {".metadata.creationTimestamp"}
    for column in resource.columns:
        assert re.sub(r"\[[^]]*\]", "", column.json_path) in known, column.name


def test_defaults_are_filled_in_by_the_api_server() -> None:
    job, pool = ask([Request(job_text(lora="", training="maxSteps: 5")), Request(pool_text())])
    assert job.defaulted["spec"]["lora"] == {
        "r": 8,
        "loraAlpha": "16",
        "loraDropout": "0",
        "useRslora": False,
        "targetModules": ["all-linear"],
        "bias": "None",
    }  # C15
    assert pool.defaulted["spec"]["gpu"]["accelerators"] == [{"name": "H100", "count": 1}]


@pytest.mark.parametrize("text", [job_text(training="maxSteps: 5"), pool_text()], ids=["AdapterJob", "BaseModelPool"])
def test_what_the_api_server_fills_in_is_what_the_models_fill_in(text: str) -> None:
    resource = ADAPTER_JOB if "AdapterJob" in text else BASE_MODEL_POOL
    (answer,) = ask([Request(text)])
    on_server = resource.spec.model_validate(answer.defaulted["spec"], by_alias=True, by_name=False)
    assert on_server == resource.spec.model_validate(answer.decoded["spec"], by_alias=True, by_name=False)


def test_command_writes_and_checks(tmp_path: Path) -> None:
    run = CliRunner()
    assert run.invoke(main, ["--check", str(tmp_path)]).exit_code == 1
    assert list(tmp_path.iterdir()) == []
    assert run.invoke(main, [str(tmp_path)]).exit_code == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == render_crds()
    assert run.invoke(main, ["--check", str(tmp_path)]).output == ""
    path = tmp_path / "multigraft.dev_adapterjobs.yaml"
    path.write_text("changed")
    done = run.invoke(main, ["--check", str(tmp_path)])
    assert (done.exit_code, done.output) == (1, f"{path}: not up to date; run `make generate`\n")
