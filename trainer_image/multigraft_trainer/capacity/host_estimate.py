"""The token capacity where the base runs on a CPU: from free memory by a formula, as trials there would take minutes.

    bytes per token = 3 itemsize sum over linear layers of (in + out)

Autograd keeps a layer's input, and what follows the layer (norm, rotation, activation, product) keeps about as much
again. Two of each are what was seen: 2.03 and 2.11 MiB a token with 256 and 1,024 tokens of SmolLM2-135M in fp32, where
two would be 2.33. Three leave room for other models, and the share of free memory that is used for everything else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from multigraft_trainer.adapters.slots import LinearShape

USED_SHARE = 0.5  # of the memory that is free now
TENSORS_PER_LINEAR = 3
LEAST_TOKENS, MOST_TOKENS = 256, 4096
"""A CPU's GEMMs are at full speed with some hundred rows; larger microbatches would only make steps coarser."""


def estimate_token_bytes(linears: Mapping[str, LinearShape], *, itemsize: int) -> int:
    """Estimate what one token of a microbatch takes in memory until its backward is done, in bytes."""
    width = sum(linear.in_features + linear.out_features for linear in linears.values())
    return TENSORS_PER_LINEAR * itemsize * width


def estimate_capacity(*, free_bytes: int, token_bytes: int, tile_tokens: int) -> int:
    """Give the capacity in whole tiles, from `LEAST_TOKENS` to `MOST_TOKENS`."""
    fitting = int(free_bytes * USED_SHARE) // token_bytes
    bounded = min(max(fitting, LEAST_TOKENS), MOST_TOKENS)
    return max(bounded // tile_tokens, 1) * tile_tokens


def read_free_bytes(root: Path = Path("/")) -> int:
    """Give the memory that this process may still take: what the machine has free, or its cgroup leaves it.

    Args:
        root: Root of the file system that `proc` and `sys` are read from.
    """
    free = _read_available(root / "proc/meminfo")
    left = _read_cgroup(root / "sys/fs/cgroup")
    return free if left is None else min(free, left)


def _read_available(path: Path) -> int:
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass  # no Linux: the machine's memory, of which half is used at most
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _read_cgroup(folder: Path) -> int | None:
    """Give what the limit of this process's cgroup (version 2) leaves; None if there is no limit.

    A container sees its own cgroup as the root. Cached files count as used there but make way.
    """
    try:
        limit = int((folder / "memory.max").read_text(encoding="ascii"))
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(limit - used + int(stat.get("inactive_file", 0)), 0)
    except (OSError, ValueError):  # not there, or "max"
        return None
