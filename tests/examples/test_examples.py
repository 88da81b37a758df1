"""Every numbered folder of examples/ is valid, explained, and run to the end by a test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from builders.quickstart import EXAMPLES

FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())
RUN_BY = {"01-quickstart": "test_quickstart_run.py", "02-cluster": "../e2e/test_example_on_a_node.py"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_example_is_numbered_explained_valid_and_run_by_a_test(folder):
    assert re.fullmatch(r"\d\d-[a-z0-9-]+", folder.name)
    assert (folder / "README.md").is_file()
    assert (Path(__file__).parent / RUN_BY[folder.name]).is_file()
    command = [Path(sys.executable).parent / "multigraft", "validate", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
