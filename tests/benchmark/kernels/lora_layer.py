"""One linear layer with several adapters at benchmark size."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from multigraft_kernels.counter_dropout import DropoutRows, DropoutTable, build_threshold
from multigraft_kernels.multi_lora.segments import LoraGrads, LoraSegment

SHAPES = (  # tokens, K, N: docs of the project name these five
    (8192, 4096, 4096),
    (8192, 4096, 14336),
    (8192, 14336, 4096),
    (16384, 4096, 4096),
    (8192, 8192, 8192),
)
RANKS = (8, 16, 16, 64)
SHARES = (0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class LoraLayer:
    x: torch.Tensor
    weight: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    dy: torch.Tensor
    segments: list[LoraSegment]
    dropout: tuple[DropoutRows, DropoutTable] | None
    grads: list[LoraGrads]


def make_layer(
    num_tokens: int,
    K: int,
    N: int,
    ranks: tuple[int, ...] = RANKS,
    shares: tuple[float, ...] = SHARES,
    p: float = 0.1,
    dtype: torch.dtype = torch.bfloat16,
) -> LoraLayer:
    """Make random data: zeros would draw less power and run faster than training does."""
    torch.manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, device="cuda") * scale).to(dtype)

    bounds = [round(num_tokens * sum(shares[:index]) / sum(shares)) for index in range(len(ranks) + 1)]
    segments = [LoraSegment(slot, bounds[slot], bounds[slot + 1], rank, 32.0 / rank) for slot, rank in enumerate(ranks)]
    owners = torch.cat([torch.full((s.end - s.start,), s.slot) for s in segments]).int()
    places = [torch.arange(num_tokens) % 1024, torch.arange(num_tokens) // 1024, torch.full((num_tokens,), 3)]
    rows = DropoutRows(owners, *(place.int() for place in places)).to(torch.device("cuda"))
    table = DropoutTable.build(list(range(11, 11 + len(ranks))), [build_threshold(p)] * len(ranks))
    return LoraLayer(
        draw(num_tokens, K).requires_grad_(True),
        draw(N, K, scale=K**-0.5),
        draw(len(ranks), max(ranks), K, scale=K**-0.5),
        draw(len(ranks), N, max(ranks), scale=0.1),
        draw(num_tokens, N),
        segments,
        (rows, table.to(torch.device("cuda"))) if p else None,
        [LoraGrads(torch.zeros(r, K, device="cuda"), torch.zeros(N, r, device="cuda")) for r in ranks],
    )
