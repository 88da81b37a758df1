"""Settings of the whole suite. Nothing here may import torch: the environment below must be set first."""

from __future__ import annotations

import os
from pathlib import Path

from multigraft_trainer.reproducible import set_reproducible_environment

set_reproducible_environment()
# Workers share two cores: one thread each is faster than threads that wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
# Without a GPU, Triton runs kernels in its CPU interpreter. It decides that when it is first imported, also for the
# functions of its own library that kernels call, so that no test can decide it later.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
