"""Install the chart on a real node and run examples/02-cluster there, as its README says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.access import ClusterAccess
from cluster.images.dockerfile import build_image

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "02-cluster"
CHART = ROOT / "helm" / "multigraft"
OPERATOR_IMAGE, TRAINER_IMAGE = "localhost/multigraft/operator", "localhost/multigraft/trainer"
TAG = "test"
SYSTEM = "multigraft-system"
TEAMS = ("team-a", "team-b")
POOLS = {"team-a": "tiny", "team-b": "small"}
VALUES = {
    "image": {"repository": OPERATOR_IMAGE, "tag": TAG},
    "trainer": {"image": {"repository": TRAINER_IMAGE, "tag": TAG}},
    # A node of two cores has to hold all of it.
    "operator": {"pollSeconds": 1, "relistSeconds": 5, "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
    "test": {"timeoutSeconds": 240, "trainerResources": {"requests": {"cpu": "100m", "memory": "512Mi"}}},
}
OTHER_EXAMPLE_IMAGE = "multigraft/trainer:0.1.0"  # what loader.yaml names


def build_images() -> tuple[Path, Path]:
    """Build both images and return their archives; a second time only the layers of our code are made."""
    operator = build_image(ROOT / "Dockerfile", ROOT, f"{OPERATOR_IMAGE}:{TAG}")
    trainer = build_image(ROOT / "trainer_image" / "Dockerfile", ROOT, f"{TRAINER_IMAGE}:{TAG}", {"SLIM_TORCH": "1"})
    return operator, trainer


def install(cluster: ClusterAccess, folder: Path, *options: str, values: dict[str, Any] | None = None) -> None:
    """Install or upgrade the chart, and wait until it is there."""
    given = folder / "values.json"
    given.write_text(json.dumps(values or VALUES))
    where = (f"--namespace={SYSTEM}", f"--values={given}", "--wait", "--timeout=3m")
    cluster.helm("upgrade", "--install", "multigraft", str(CHART), *where, *options)


def make_volume(cluster: ClusterAccess, team: str, path: Path) -> None:
    """Make the volume that a team's claim is bound to: a folder of this machine, since there is no provisioner."""
    path.mkdir()
    path.chmod(0o777)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"example-{team}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": team, "name": "storage"},
            "hostPath": {"path": str(path)},
        },
    }
    cluster.kubectl("apply", "--filename=-", text=json.dumps(volume))


def prepare(folder: Path) -> Path:
    """Copy the example and make its base model and datasets there."""
    copy = folder / "examples" / EXAMPLE.name
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("prepared", "__pycache__"))
    base = Path("helm", "multigraft", "files", "tests", "tiny_base.py")
    (folder / base).parent.mkdir(parents=True)
    shutil.copy(ROOT / base, folder / base)
    subprocess.run([sys.executable, copy / "prepare.py"], check=True, capture_output=True)
    return copy


def load_claims(cluster: ClusterAccess, example: Path) -> None:
    """Fill each team's claim through the loader pod."""
    loader = (example / "loader.yaml").read_text()
    assert OTHER_EXAMPLE_IMAGE in loader
    for team in TEAMS:
        text = loader.replace(OTHER_EXAMPLE_IMAGE, f"{TRAINER_IMAGE}:{TAG}")
        cluster.kubectl("apply", f"--namespace={team}", "--filename=-", text=text)
    for team in TEAMS:
        where = f"--namespace={team}"
        cluster.kubectl("wait", where, "--for=condition=Ready", "pod/loader", "--timeout=120s")
        cluster.kubectl("exec", where, "loader", "--", "mkdir", "-p", "/storage/data", "/storage/output")
        cluster.kubectl("cp", where, str(example / "prepared"), "loader:/storage/data/prepared")
        cluster.kubectl("delete", where, "pod/loader")


def run_here(example: Path, team: str, out: Path) -> None:
    """Train a team's jobs with `multigraft run`, from the same files."""
    program = Path(sys.executable).parent / "multigraft"
    command = [program, "run", example, "--pool", f"{team}/{POOLS[team]}", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def list_jobs(cluster: ClusterAccess, namespace: str = "") -> dict[str, dict[str, Any]]:
    """Give the jobs of a namespace, or of all, by namespace/name."""
    where = f"--namespace={namespace}" if namespace else "--all-namespaces"
    items = json.loads(cluster.kubectl("get", "adapterjobs", where, "--output=json"))["items"]
    return {f"{item['metadata']['namespace']}/{item['metadata']['name']}": item for item in items}


def condition_of(job: dict[str, Any], kind: str) -> dict[str, Any]:
    """Give a condition of an object, or an empty one."""
    conditions = job.get("status", {}).get("conditions", [])
    return next((dict(condition) for condition in conditions if condition["type"] == kind), {})


def explain(cluster: ClusterAccess) -> str:
    """Say what there is to see, for a test that failed."""
    parts = [cluster.kubectl("get", "pods,bmp,aj,events", "--all-namespaces")]
    selector = "--selector=app.kubernetes.io/part-of=multigraft"
    for namespace in (SYSTEM, *TEAMS):
        parts.append(cluster.kubectl("logs", f"--namespace={namespace}", selector, "--tail=15", "--prefix"))
    return "\n".join(parts)


def settled(cluster: ClusterAccess) -> Callable[[], dict[str, dict[str, Any]]]:
    """Give a check that is true once every job has succeeded and been let go; it fails at the first that failed."""

    def check() -> dict[str, dict[str, Any]]:
        jobs = list_jobs(cluster)
        failed = {key: condition_of(job, "Failed") for key, job in jobs.items()}
        assert not [key for key, condition in failed.items() if condition.get("status") == "True"], failed
        # The finalizer goes a moment after the status, when the trainer has taken a set without the job.
        done = (
            condition_of(job, "Succeeded").get("status") == "True" and not job["metadata"].get("finalizers")
            for job in jobs.values()
        )
        return jobs if all(done) else {}

    return check
