"""What ends a trainer before it trains: H12, exit code 2 and last words that the operator can read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

POOL = {
    "apiVersion": "multigraft.dev/v1alpha1",
    "kind": "BaseModelPool",
    "metadata": {"name": "p", "uid": "u-1"},
    "spec": {"baseModel": {"storageUri": "base"}},
}


def run(folder: Path, pool: str, *, token: str = "canary-token-123-x" * 2) -> subprocess.CompletedProcess[str]:
    (folder / "pool.json").write_text(pool)
    (folder / "token").write_text(token)
    (folder / "termination").touch()
    environment = {
        "MULTIGRAFT_POOL_FILE": str(folder / "pool.json"),
        "MULTIGRAFT_POD_NAME": "p-0",
        "MULTIGRAFT_TOKEN_FILE": str(folder / "token"),
        "MULTIGRAFT_STORAGE_ROOT": str(folder),
        "MULTIGRAFT_OUTPUT_ROOT": str(folder),
        "MULTIGRAFT_TERMINATION_LOG": str(folder / "termination"),
    }
    command = [sys.executable, "-m", "multigraft_trainer.service"]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


BAD_POOLS = {
    "no JSON or YAML": ("{", "pool.json"),
    "an unknown field": (json.dumps({**POOL, "spec": {**POOL["spec"], "slotz": 3}}), "slotz"),
    "no uid": (json.dumps({**POOL, "metadata": {"name": "p"}}), "metadata.uid"),
}


@pytest.mark.parametrize("pool, want", BAD_POOLS.values(), ids=BAD_POOLS.keys())
def test_H12_a_bad_pool_ends_with_2_and_says_why(tmp_path: Path, pool: str, want: str) -> None:
    done = run(tmp_path, pool)
    assert done.returncode == 2
    last = json.loads((tmp_path / "termination").read_text())
    assert last["reason"] == "InvalidSpec"
    assert want in last["message"]
    assert [json.loads(line)["reason"] for line in done.stdout.splitlines()] == ["InvalidSpec"]
    assert done.stderr == ""


def test_a_missing_option_ends_with_2() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MULTIGRAFT_")}
    command = [sys.executable, "-m", "multigraft_trainer.service"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--pool-file" in done.stderr
