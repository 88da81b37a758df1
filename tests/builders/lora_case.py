"""One linear layer with several adapters: inputs for a fast form and for the reference, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from builders.dropout_case import make_rows, make_table
from multigraft_kernels.counter_dropout import DropoutRows, DropoutTable
from multigraft_kernels.multi_lora.reference import multi_lora_reference
from multigraft_kernels.multi_lora.segmented import multi_lora_linear
from multigraft_kernels.multi_lora.segments import LoraGrads, LoraSegment


@dataclass(frozen=True)
class Adapter:
    """What differs between the adapters of a case."""

    rank: int = 8
    scaling: float = 2.0
    dropout: float = 0.0


@dataclass
class LoraCase:
    """A layer [N, K] with stacked adapters; `order` lists (adapter index or -1, number of tokens)."""

    adapters: Sequence[Adapter]
    order: Sequence[tuple[int, int]]
    in_features: int = 48
    out_features: int = 80
    bias: bool = False
    seed: int = 0
    padding: float = 0.0  # what stands in the rows and columns beyond an adapter's rank
    slots: Sequence[int] | None = None  # slot of each adapter; default its index
    first_position: int = 0  # position of the first token, for the dropout
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    x: torch.Tensor = field(init=False)
    weight: torch.Tensor = field(init=False)
    bias_vector: torch.Tensor | None = field(init=False)
    a: torch.Tensor = field(init=False)
    b: torch.Tensor = field(init=False)
    dy: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        K, N, T = self.in_features, self.out_features, sum(length for _, length in self.order)
        max_rank = max((adapter.rank for adapter in self.adapters), default=1)
        slots = self.slot_of
        self.a = torch.full((max(slots, default=0) + 1, max_rank, K), self.padding)
        self.b = torch.full((max(slots, default=0) + 1, N, max_rank), self.padding)

        def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return (torch.randn(*shape, generator=generator) * scale).to(self.dtype).to(self.device)

        self.weight = draw(N, K, scale=K**-0.5)
        self.bias_vector = draw(N) if self.bias else None
        for slot, adapter in zip(slots, self.adapters, strict=True):
            self.a[slot, : adapter.rank] = draw(adapter.rank, K, scale=K**-0.5)
            self.b[slot, :, : adapter.rank] = draw(N, adapter.rank, scale=adapter.rank**-0.5)
        self.a, self.b = (stack.to(self.dtype).to(self.device) for stack in (self.a, self.b))
        self.x, self.dy = draw(T, K), draw(T, N)

    @property
    def slot_of(self) -> list[int]:
        return list(self.slots) if self.slots is not None else list(range(len(self.adapters)))

    @property
    def segments(self) -> list[LoraSegment]:
        segments, start = [], 0
        for index, length in self.order:
            if index >= 0:
                adapter = self.adapters[index]
                segments.append(LoraSegment(self.slot_of[index], start, start + length, adapter.rank, adapter.scaling))
            start += length
        return segments

    @property
    def dropout(self) -> tuple[DropoutRows, DropoutTable] | None:
        if not any(adapter.dropout for adapter in self.adapters):
            return None
        owners = [index for index, length in self.order for _ in range(length)]
        device = torch.device(self.device)
        rows = make_rows(owners, first_position=self.first_position)
        table = make_table([adapter.dropout for adapter in self.adapters])
        return rows.to(device), table.to(device)


@dataclass
class Outcome:
    """Output and gradients of one run of a case; `da` and `db` per adapter, without padding."""

    y: torch.Tensor
    dx: torch.Tensor
    da: list[torch.Tensor]
    db: list[torch.Tensor]


def run_segmented(case: LoraCase, *, grad_weights: Sequence[float] | None = None, dx: bool = True) -> Outcome:
    """Run the plain-torch fast form forward and backward."""
    K, N = case.in_features, case.out_features
    sinks = [
        LoraGrads(torch.zeros(adapter.rank, K, device=case.device), torch.zeros(N, adapter.rank, device=case.device))
        for adapter in case.adapters
    ]
    owners = [index for index, _ in case.order if index >= 0]
    segments = case.segments
    if grad_weights is not None:
        segments = [
            LoraSegment(s.slot, s.start, s.end, s.rank, s.scaling, weight)
            for s, weight in zip(segments, grad_weights, strict=True)
        ]
    x = case.x.clone().requires_grad_(dx)
    y = multi_lora_linear(
        x,
        case.weight,
        case.bias_vector,
        case.a,
        case.b,
        segments,
        dropout=case.dropout,
        grads=[sinks[owner] for owner in owners],
    )
    if y.requires_grad:
        y.backward(case.dy)
    grad = x.grad if x.grad is not None else torch.zeros_like(x)
    return Outcome(y.detach(), grad, [sink.a for sink in sinks], [sink.b for sink in sinks])


def run_reference(case: LoraCase) -> Outcome:
    """Run the differentiable reference in float64 and let autograd find the gradients."""
    x, a, b = (tensor.double().clone().requires_grad_(True) for tensor in (case.x, case.a, case.b))
    bias = None if case.bias_vector is None else case.bias_vector.double()
    y = multi_lora_reference(x, case.weight.double(), bias, a, b, case.segments, case.dropout)
    (da, db, dx) = torch.autograd.grad(y, (a, b, x), case.dy.double(), allow_unused=True)
    da = torch.zeros_like(a) if da is None else da
    db = torch.zeros_like(b) if db is None else db
    return Outcome(
        y.detach(),
        torch.zeros_like(x) if dx is None else dx,
        [da[slot, : adapter.rank] for slot, adapter in zip(case.slot_of, case.adapters, strict=True)],
        [db[slot, :, : adapter.rank] for slot, adapter in zip(case.slot_of, case.adapters, strict=True)],
    )


def assert_close(got: Outcome, want: Outcome, relative: float) -> None:
    """Compare by ||got - want|| / ||want||, tensor by tensor; NaN never passes."""
    pairs = [("y", got.y, want.y), ("dx", got.dx, want.dx)]
    pairs += [(f"dA of {i}", one, other) for i, (one, other) in enumerate(zip(got.da, want.da, strict=True))]
    pairs += [(f"dB of {i}", one, other) for i, (one, other) in enumerate(zip(got.db, want.db, strict=True))]
    for name, one, other in pairs:
        error = (one.double() - other.double()).norm().item()
        assert error <= relative * other.double().norm().item() + 1e-30, f"{name}: {error / other.norm().item()}"
