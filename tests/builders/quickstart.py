"""The quickstart example as tests see it: its folder, its modules, and its prepared base."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUICKSTART = EXAMPLES / "01-quickstart"


def load_example_module(name: str) -> ModuleType:
    """Import `examples/01-quickstart/<name>.py` as the script's own import statement finds it."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, QUICKSTART / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def prepare_quickstart() -> Path:
    """Make the quickstart's base and datasets, or find them made; gives the folder.

    Skips the test where the base cannot be downloaded, except in CI.
    """
    load_example_module("texts")
    prepare = load_example_module("prepare")
    try:
        prepare.prepare(QUICKSTART / "prepared")
    except prepare.DownloadError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the real base model is not here and cannot be downloaded: {error}")
    return QUICKSTART / "prepared"
