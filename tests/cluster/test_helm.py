"""Helm works against the API server: install, upgrade, rollback, uninstall."""

from pathlib import Path

import pytest

from cluster.access import ClusterAccess
from cluster.programs.build import ProgramsMissingError

CHART = "apiVersion: v2\nname: tiny\nversion: 0.1.0\n"
TEMPLATE = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}
data:
  colour: {{ .Values.colour | quote }}
"""


@pytest.fixture
def chart(api_server: ClusterAccess, tmp_path: Path) -> Path:
    """Give a chart of one ConfigMap; skip where there is no Helm."""
    try:
        api_server.programs.path("helm")
    except ProgramsMissingError as error:
        pytest.skip(str(error))
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text(CHART)
    (tmp_path / "values.yaml").write_text("colour: red\n")
    (tmp_path / "templates" / "map.yaml").write_text(TEMPLATE)
    return tmp_path


def test_a_release_is_installed_upgraded_rolled_back_and_removed(api_server: ClusterAccess, chart: Path) -> None:
    where = ("--namespace=helm-test", "--wait")

    def colour() -> str:
        return api_server.kubectl(
            "get", "configmap", "one", "--namespace=helm-test", "--output=jsonpath={.data.colour}"
        )

    api_server.helm("install", "one", str(chart), *where, "--create-namespace")
    assert colour() == "red"
    api_server.helm("upgrade", "one", str(chart), *where, "--set=colour=green")
    assert colour() == "green"
    api_server.helm("rollback", "one", *where)
    assert colour() == "red"
    api_server.helm("uninstall", "one", *where)
    assert api_server.kubectl("get", "configmap", "one", "--namespace=helm-test", "--ignore-not-found") == ""
    api_server.kubectl("delete", "namespace", "helm-test", "--timeout=60s")


def test_the_caches_of_helm_and_kubectl_go_with_the_cluster(api_server: ClusterAccess, chart: Path) -> None:
    got = dict(line.split("=", 1) for line in api_server.helm("env").splitlines())

    for variable in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"):
        assert Path(got[variable].strip('"')).is_relative_to(api_server.scratch)
