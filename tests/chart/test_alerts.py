"""The alerts in the words of promtool: the file is valid, and each tested alert comes when it should."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from builders.chart import CHART
from cluster.fixtures import skip_or_fail
from cluster.programs.build import ProgramsMissingError
from cluster.programs.prometheus import prometheus_folder


@pytest.fixture
def promtool() -> Path:
    try:
        return prometheus_folder() / "promtool"
    except ProgramsMissingError as error:
        skip_or_fail(str(error))
        raise AssertionError("skipped above") from None


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            ("check", "rules", "--lint-fatal", str(CHART / "files" / "alerts.yaml")), id="the rules are valid"
        ),
        pytest.param(
            ("test", "rules", str(Path(__file__).with_name("alerts_test.yaml"))), id="they come when they should"
        ),
    ],
)
def test_H12_promtool_finds_nothing(promtool: Path, command: tuple[str, ...]) -> None:
    done = subprocess.run((promtool, *command), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
