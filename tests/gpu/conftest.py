"""Everything here needs a CUDA device and says so where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.gpu)
            # torch's own remark on the first cuBLAS call of its backward thread
            item.add_marker(pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"))
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
