"""The lock file and the setup script."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]


def read_lock() -> dict[str, list[Version]]:
    text = (ROOT / "requirements.lock").read_text()
    pins: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^([a-z0-9._-]+)==([^ ;]+)", text, re.MULTILINE):
        pins.setdefault(canonicalize_name(name), []).append(Version(version))
    return pins


def read_direct_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    return [requirement for requirement in map(Requirement, texts) if requirement.name != "multigraft"]


def test_the_lock_pins_every_direct_requirement_within_its_bounds():
    pins = read_lock()
    wrong = {
        requirement.name: pins.get(canonicalize_name(requirement.name))
        for requirement in read_direct_requirements()
        if not any(version in requirement.specifier for version in pins.get(canonicalize_name(requirement.name), []))
    }
    assert wrong == {}, "run `make lock`"


def test_every_pin_has_hashes_and_the_lock_names_no_host():
    text = (ROOT / "requirements.lock").read_text()
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert [block.split("\n")[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert not re.search(r"://|--(extra-)?index|--find-links|--trusted-host", text)


def test_setup_without_a_fit_interpreter_says_what_it_looked_for():
    done = subprocess.run(
        [ROOT / "scripts" / "setup"],
        env=os.environ | {"PYTHON": "python-that-is-not-there"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "setup: no Python 3.11 or newer among: python-that-is-not-there; set PYTHON=...\n"


def test_continuous_integration_runs_tests_and_checks_without_a_terminal():
    script = (ROOT / ".ci" / "run").read_text()
    assert script.index("make test") < script.index("make check")
    assert "exec </dev/null" in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
