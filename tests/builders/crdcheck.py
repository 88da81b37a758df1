"""Ask what a Kubernetes API server says to a manifest: builds tests/kube/crdcheck once and runs it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "tests" / "kube" / "crdcheck"
CRDS = ROOT / "crds"


@dataclass(frozen=True)
class Request:
    """A manifest to create, or to put in the place of `old`; both as YAML text of one document."""

    manifest: str
    old: str | None = None


@dataclass(frozen=True)
class Answer:
    """What the API server does with it."""

    accepted: bool
    problems: list[dict[str, str]]  # field, type, message
    decoded: Any  # the JSON that kubectl makes of the manifest
    defaulted: Any

    def names(self, field: str) -> bool:
        """Say whether a problem names `field`, in its path or in its message."""
        last = field.rpartition(".")[2]
        parent = field.rpartition(".")[0]
        for problem in self.problems:
            path = problem["field"]
            if path == field or path.startswith((f"{field}[", f"{field}.")):
                return True
            if path in {parent, ""} and last in problem["message"]:
                return True
        return False


def ask(requests: Sequence[Request], crds: Sequence[Path] | None = None) -> list[Answer]:
    """Answer every request; skips the test if there is no Go toolchain and no program built before."""
    lines = [json.dumps({"id": str(i), "manifest": r.manifest, "old": r.old or ""}) for i, r in enumerate(requests)]
    files = sorted(CRDS.glob("*.yaml")) if crds is None else crds
    done = subprocess.run(
        [build(), *files], input="\n".join(lines), capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        raise ValueError(done.stderr.strip())
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [Answer(a["accepted"], a["problems"], a.get("decoded"), a.get("defaulted")) for a in answers]


def build() -> Path:
    """Give the program, from the cache or built into it (from nothing: some minutes of two cores)."""
    program = _cache_folder() / "crdcheck"
    if program.is_file():
        return program
    if shutil.which("go") is None:
        pytest.skip("crdcheck is not built, and there is no Go toolchain (go 1.24 or newer)")
    program.parent.mkdir(parents=True, exist_ok=True)
    with _locked(program.parent / ".lock"):
        if not program.is_file():
            fresh = program.with_suffix(".new")
            environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
            command = ["go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", fresh, "."]
            subprocess.run(command, cwd=SOURCES, env=environment, check=True)
            fresh.rename(program)
    return program


def _cache_folder() -> Path:
    """Name the folder after all that goes into the program."""
    digest = hashlib.sha256()
    for source in sorted([*SOURCES.glob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum"]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "multigraft" / f"crdcheck-{digest.hexdigest()[:16]}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
