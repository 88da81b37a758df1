"""The chart, rendered by the Helm that the test cluster uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.chart import Chart
from cluster.fixtures import api_server, namespace, skip_or_fail
from cluster.programs.build import ProgramsMissingError
from cluster.programs.locate import Programs, locate_programs

__all__ = ["api_server", "chart", "namespace"]


@pytest.fixture
def chart(tmp_path: Path) -> Chart:
    return Chart(_find_helm(), tmp_path)


def _find_helm() -> Programs:
    try:
        programs = locate_programs(())
        programs.path("helm")
    except ProgramsMissingError as error:
        skip_or_fail(f"{error}; run `python -m cluster build` in tests/")
    return programs
