"""Dropout counters and tables of made-up microbatches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from multigraft_kernels.counter_dropout import DropoutRows, DropoutTable, build_threshold
from multigraft_kernels.philox import build_key, build_site


def make_rows(adapters: Sequence[int], *, draw: int = 7, step: int = 3, first_position: int = 0) -> DropoutRows:
    """Make the counters of one sample whose token t belongs to `adapters[t]`."""
    num_tokens = len(adapters)
    positions = range(first_position, first_position + num_tokens)
    values = (adapters, positions, [draw] * num_tokens, [step] * num_tokens)
    return DropoutRows(*(torch.tensor(list(value), dtype=torch.int32) for value in values))


def make_table(dropouts: Sequence[float], *, layer: str = "layer", seeds: Sequence[int] | None = None) -> DropoutTable:
    """Make the table of one layer for adapters with these dropout probabilities; seed = index unless given."""
    seeds = seeds if seeds is not None else range(len(dropouts))
    return DropoutTable.build(
        [build_key(seed, build_site(layer)) for seed in seeds], [build_threshold(p) for p in dropouts]
    )
