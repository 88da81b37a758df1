"""Pods on the real node: they start, see the API server and each other, and are held to the restricted profile."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.access import ClusterAccess, CommandError
from cluster.fixtures import load_or_skip
from cluster.images.dockerfile import build_image
from cluster.images.python_base import python_base_archive, python_base_image

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}

# Uses the name of the service, its address and the token that the pod was given.
ASK_API_SERVER = """
import json, os, pathlib, ssl, urllib.request
account = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
headers = {"Authorization": "Bearer " + (account / "token").read_text()}
for host in ("kubernetes.default.svc", os.environ["KUBERNETES_SERVICE_HOST"]):
    request = urllib.request.Request(f"https://{host}/version", headers=headers)
    with urllib.request.urlopen(request, context=trusted, timeout=10) as answer:
        print(host, json.load(answer)["gitVersion"])
"""

SERVE = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=8080, bind='0.0.0.0')"
# A ready pod is known to name server and proxy a moment later, so a client asks until it is answered.
FETCH = """
import time, urllib.request
for seconds_left in reversed(range(60)):
    try:
        print(urllib.request.urlopen("http://{host}/etc/hostname", timeout=10).read().decode())
        break
    except OSError:
        if not seconds_left:
            raise
        time.sleep(1)
"""


@pytest.fixture(scope="module")
def with_python(node_cluster: ClusterAccess) -> ClusterAccess:
    """Give a node that has the Python image."""
    load_or_skip(node_cluster, python_base_archive())
    return node_cluster


def build_pod(name: str, code: str, *, labels: dict[str, str] | None = None) -> dict[str, object]:
    """Return a pod that runs Python code once, under the restricted profile."""
    container = {
        "name": "main",
        "image": python_base_image(),
        "imagePullPolicy": "Never",
        "command": ["python3", "-u", "-c", code],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    context = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "securityContext": context,
            "terminationGracePeriodSeconds": 0,
        },
    }


def apply(cluster: ClusterAccess, namespace: str, *objects: dict[str, object]) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    cluster.kubectl("apply", f"--namespace={namespace}", "--filename=-", text=json.dumps(items))


def run_to_end(cluster: ClusterAccess, namespace: str, name: str, code: str) -> str:
    """Run a pod and return what it printed."""
    apply(cluster, namespace, build_pod(name, code))
    where = f"--namespace={namespace}"
    cluster.kubectl("wait", where, f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s")
    return cluster.kubectl("logs", where, name)


def test_a_restricted_pod_reaches_the_api_server_by_name_and_by_address(
    with_python: ClusterAccess, namespace: Callable[..., str]
) -> None:
    restricted = namespace(with_python, **RESTRICTED)

    got = run_to_end(with_python, restricted, "ask", ASK_API_SERVER)

    version = json.loads(with_python.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"]
    hosts = [line.split() for line in got.splitlines()]
    assert [shown for _, shown in hosts] == [version, version]


def test_a_restricted_namespace_refuses_a_pod_that_may_become_root(
    with_python: ClusterAccess, namespace: Callable[..., str]
) -> None:
    restricted = namespace(with_python, **RESTRICTED)
    pod = build_pod("rooted", "pass")
    del pod["spec"]["securityContext"]  # type: ignore[attr-defined]  # a dict, three lines above

    with pytest.raises(CommandError, match="runAsNonRoot"):
        apply(with_python, restricted, pod)


def test_a_pod_reaches_its_neighbour_through_a_service_and_through_a_headless_name(
    with_python: ClusterAccess, namespace: Callable[..., str]
) -> None:
    own = namespace(with_python)
    labels = {"app": "server"}
    services: list[dict[str, object]] = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}], **more},
        }
        for name, more in (("balanced", {}), ("headless", {"clusterIP": "None"}))
    ]
    apply(with_python, own, *services, build_pod("server", SERVE, labels=labels))
    with_python.kubectl("wait", f"--namespace={own}", "pod/server", "--for=condition=Ready", "--timeout=60s")

    code = "\n".join(FETCH.format(host=host) for host in (f"balanced.{own}", f"headless.{own}.svc:8080"))
    got = run_to_end(with_python, own, "client", code)

    assert got.split() == ["server", "server"]


def test_commands_run_in_a_pod_and_its_port_can_be_forwarded(
    with_python: ClusterAccess, namespace: Callable[..., str]
) -> None:
    own = namespace(with_python)
    apply(with_python, own, build_pod("server", SERVE))
    with_python.kubectl("wait", f"--namespace={own}", "pod/server", "--for=condition=Ready", "--timeout=60s")

    printed = with_python.kubectl("exec", f"--namespace={own}", "server", "--", "python3", "-c", "print(6 * 7)")
    proxied = with_python.kubectl("get", "--raw", f"/api/v1/namespaces/{own}/pods/server:8080/proxy/etc/hostname")

    assert printed.strip() == "42"
    assert proxied.strip() == "server"


def test_a_deleted_namespace_ends_with_the_pods_in_it(
    with_python: ClusterAccess, namespace: Callable[..., str]
) -> None:
    own = namespace(with_python)
    apply(with_python, own, build_pod("server", SERVE))
    with_python.kubectl("wait", f"--namespace={own}", "pod/server", "--for=condition=Ready", "--timeout=60s")

    with_python.kubectl("delete", "namespace", own, "--timeout=60s")

    assert with_python.kubectl("get", "namespace", own, "--ignore-not-found") == ""


def test_the_dockerfile_of_a_project_is_built_on_the_base_and_runs(
    with_python: ClusterAccess, namespace: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "hello.py").write_text("print('built here')\n")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(
        "ARG BASE_IMAGE=python:3.11-slim-bookworm\n"
        "FROM ${BASE_IMAGE}\n"
        "COPY hello.py /app/hello.py\n"
        "RUN python3 /app/hello.py && python3 -m pip --version\n"
        "USER 1000:1000\n"
        'ENTRYPOINT ["python3", "/app/hello.py"]\n'
    )
    image = "localhost/multigraft/harness-test:1"
    with_python.load_image(build_image(dockerfile, tmp_path, image))
    own = namespace(with_python)
    with_python.kubectl(
        "run", "hello", f"--namespace={own}", f"--image={image}", "--image-pull-policy=Never", "--restart=Never"
    )

    where = f"--namespace={own}"
    with_python.kubectl("wait", where, "pod/hello", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    assert with_python.kubectl("logs", where, "hello").strip() == "built here"
