"""The Gluon kernels compile for Hopper on any machine: no spills, no serialised wgmma, within shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HOPPER_SHARED_BYTES = 232_448  # per block, compute capability 9.0 (CUDA C++ programming guide, table of features)


@pytest.mark.slow
def test_kernels_compile_without_spills(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    program = Path(__file__).with_name("compile_for_hopper.py")
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    for kernel, report in json.loads(done.stdout).items():
        assert report["spilled"] == 0, kernel
        assert report["serialized"] == 0, kernel
        assert report["shared"] <= HOPPER_SHARED_BYTES, kernel
