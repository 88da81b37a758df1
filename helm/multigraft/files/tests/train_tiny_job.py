"""What `helm test` runs: make a tiny base, a pool and a job, wait until the job has succeeded, remove all of it."""

from __future__ import annotations

import base64
import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import tiny_base

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NAMESPACE = os.environ["TEST_NAMESPACE"]
NAME = os.environ["TEST_NAME"]
TIMEOUT_SECONDS = float(os.environ["TEST_TIMEOUT_SECONDS"])
TRAINER_RESOURCES = json.loads(os.environ["TEST_TRAINER_RESOURCES"])
MAX_STEPS = 3

CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
POOLS = f"/apis/multigraft.dev/v1alpha1/namespaces/{NAMESPACE}/basemodelpools"
JOBS = f"/apis/multigraft.dev/v1alpha1/namespaces/{NAMESPACE}/adapterjobs"


def say(text: str) -> None:
    """Write one line of the log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def call(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask the API server.

    Raises:
        urllib.error.HTTPError: If it refuses.
    """
    request = urllib.request.Request(
        f"https://kubernetes.default.svc{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}", "Content-Type": "application/json"},
    )
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, context=trusted, timeout=30) as answer:  # noqa: S310
        return dict(json.load(answer))


def build_objects() -> list[tuple[str, dict[str, Any]]]:
    """Build what is made, in order, each with the path of its kind."""
    base = {name: base64.b64encode(data).decode() for name, data in tiny_base.build_files().items()}
    rows = "".join(json.dumps({"text": f"Line {number} of a tiny dataset."}) + "\n" for number in range(8))
    ours = {"apiVersion": "multigraft.dev/v1alpha1", "metadata": {"name": NAME}}
    pool = {
        "baseModel": {"storageUri": "base", "dtype": "FP32"},
        "gpu": {"accelerators": [{"name": "CPU"}]},
        "slots": {"max": 1, "maxRank": 4},
        "batching": {"maxTokensPerMicrobatch": 128},
        "drainTimeoutSeconds": 10,
        "template": {
            "resources": TRAINER_RESOURCES,
            "volumes": [{"name": "base", "configMap": {"name": NAME}}],
            "volumeMounts": [{"name": "base", "mountPath": "/data/base", "readOnly": True}],
        },
    }
    job = {
        "poolRef": {"name": NAME},
        "dataset": {"configMapRef": {"name": NAME, "key": "rows.jsonl"}, "format": "Text"},
        "lora": {"r": 4},
        "training": {"maxSteps": MAX_STEPS, "globalBatchSize": 2, "learningRate": "1e-2", "maxSeqLength": 64},
    }
    return [
        (CONFIG_MAPS, {"metadata": {"name": NAME}, "binaryData": base, "data": {"rows.jsonl": rows}}),
        (POOLS, {**ours, "kind": "BaseModelPool", "spec": pool}),
        (JOBS, {**ours, "kind": "AdapterJob", "spec": job}),
    ]


def wait_for_job() -> str:
    """Wait until the job has ended; returns why it is no success, or an empty text."""
    end = time.monotonic() + TIMEOUT_SECONDS
    told = ""
    while time.monotonic() < end:
        status = call("GET", f"{JOBS}/{NAME}").get("status", {})
        conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
        for kind in ("Succeeded", "Failed"):
            condition = conditions.get(kind, {})
            if condition.get("status") == "True":
                say(f"{kind}: {condition.get('message', '')}")
                return "" if kind == "Succeeded" else f"the job failed: {condition.get('reason')}"
        admitted = conditions.get("Admitted", {})
        now = f"{status.get('phase', 'no status yet')}: {admitted.get('reason', '')} {admitted.get('message', '')}"
        if now != told:
            say(now)
            told = now
        time.sleep(1)
    return f"no end after {TIMEOUT_SECONDS:.0f} s; last seen: {told}"


def remove(objects: list[tuple[str, dict[str, Any]]]) -> None:
    """Remove what was made, last first; what is not there is fine."""
    for path, _ in reversed(objects):
        try:
            call("DELETE", f"{path}/{NAME}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                say(f"not removed: {path}/{NAME}: {error}")


def main() -> None:
    """Run the test; what was made is removed also when the pod is deleted in the midst of it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    objects = build_objects()
    try:
        for path, body in objects:
            call("POST", path, body)
        problem = wait_for_job()
    except urllib.error.HTTPError as error:
        problem = f"{error}: {error.read().decode(errors='replace')}"
    finally:
        remove(objects)
    sys.exit(problem or None)


if __name__ == "__main__":
    main()
