"""What is built is what the Go modules say, once, and again when its sources change."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cluster.programs import build, versions
from cluster.programs.build import ProgramsMissingError, build_programs, built_folder, unbuilt_programs
from cluster.programs.builds import BUILDS, MODULES, Build
from cluster.programs.locate import API_SERVER_PROGRAMS, locate_programs


@pytest.mark.parametrize(
    "module, required, version",
    [
        (".", "k8s.io/kubernetes", versions.KUBERNETES),
        (".", "go.etcd.io/etcd/server/v3", versions.ETCD),
        ("helm", "helm.sh/helm/v3", versions.HELM),
        ("coredns", "github.com/coredns/coredns", versions.COREDNS),
    ],
)
def test_versions_are_those_of_the_go_modules(module: str, required: str, version: str) -> None:
    words = (MODULES / module / "go.mod").read_text().split()

    assert words[words.index(required) + 1] == f"v{version}"


def test_the_parts_of_kubernetes_are_of_the_same_release() -> None:
    text = (MODULES / "go.mod").read_text()
    got = re.findall(r"^\tk8s\.io/\S+ => k8s\.io/\S+ v0\.(\S+)$", text, re.MULTILINE)

    assert len(got) > 20
    assert set(got) == {versions.KUBERNETES.removeprefix("1.")}


@pytest.mark.parametrize("which", BUILDS, ids=lambda build: build.program)
def test_a_change_of_sources_sums_or_flags_is_another_binary(
    which: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "kube"
    shutil.copytree(MODULES, copy)
    monkeypatch.setattr("cluster.programs.builds.MODULES", copy)
    before = which.inputs_digest()

    sums = copy / which.module / "go.sum"
    sums.write_text(sums.read_text() + "\n")

    assert which.inputs_digest() != before


@pytest.fixture
def tiny_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the source of a Go program that stands for all of BUILDS, with a cache of its own."""
    if shutil.which("go") is None:
        pytest.skip("there is no Go toolchain")
    source = tmp_path / "modules" / "tiny" / "main.go"
    source.parent.mkdir(parents=True)
    source.with_name("go.mod").write_text("module tiny\n\ngo 1.24\n")
    source.write_text("package main\n\nfunc main() {}\n")
    builds = (Build("tiny", "tiny", ".", links=("etcd", "kube-apiserver", "kubectl")),)
    monkeypatch.setattr("cluster.programs.builds.MODULES", source.parents[1])
    monkeypatch.setattr(build, "BUILDS", builds)
    go_cache = subprocess.run(("go", "env", "GOCACHE"), check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setenv("GOCACHE", go_cache)  # else it would follow XDG_CACHE_HOME and start from nothing
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return source


def test_programs_are_built_once_and_again_when_their_source_changes(tiny_program: Path) -> None:
    said: list[str] = []

    build_programs(said.append)
    build_programs(said.append)
    assert len(said) == 1

    tiny_program.write_text("package main\n\nfunc main() { println(1) }\n")
    assert unbuilt_programs(built_folder(), API_SERVER_PROGRAMS) == list(API_SERVER_PROGRAMS)
    build_programs(said.append)
    assert len(said) == 2


def test_programs_that_are_not_built_are_named_with_what_to_do(tiny_program: Path) -> None:
    with pytest.raises(ProgramsMissingError, match="etcd, kube-apiserver, kubectl: not built yet; run `python -m"):
        locate_programs(API_SERVER_PROGRAMS)


def test_without_go_what_is_missing_is_named(tiny_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(ProgramsMissingError, match="tiny: not built yet, and there is no Go toolchain"):
        build_programs(lambda _: None)


def test_programs_of_the_developer_come_first_and_nothing_is_built(
    tiny_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    for name in API_SERVER_PROGRAMS:
        (assets / name).touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))

    programs = locate_programs(API_SERVER_PROGRAMS)

    assert programs.path("etcd") == str(assets / "etcd")
    assert not built_folder().exists()
    with pytest.raises(ProgramsMissingError, match=r"KUBEBUILDER_ASSETS=.* lacks kubelet"):
        locate_programs(("etcd", "kubelet"))
