"""A linear layer of the frozen base that applies, to the rows of each adapter, that adapter's LoRA update."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from multigraft_kernels.counter_dropout import DropoutRows, DropoutTable
from multigraft_kernels.multi_lora import dispatch, segmented
from multigraft_kernels.multi_lora.segments import LoraGrads, LoraSegment


@dataclass(frozen=True)
class LayerRoute:
    """What one layer does in one microbatch."""

    a: torch.Tensor  # [slots, maxRank, in]
    b: torch.Tensor  # [slots, out, maxRank]
    segments: tuple[LoraSegment, ...]
    dropout: tuple[DropoutRows, DropoutTable] | None
    grads: tuple[LoraGrads, ...] | None  # None: forward only


@dataclass
class CurrentRoutes:
    """Routes of the microbatch that is running, by layer name; shared by all layers of a model."""

    fused: bool = True  # False: the plain form everywhere, which is the reference
    by_layer: dict[str, LayerRoute] = field(default_factory=dict)


class LoraLinear(nn.Module):
    """Takes the place of an `nn.Linear` and shares its parameters, under the same names."""

    def __init__(self, name: str, linear: nn.Linear, routes: CurrentRoutes) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.weight = linear.weight
        self.bias = linear.bias
        self._name = name
        self._routes = routes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the layer's output; without a route, exactly what the frozen layer gives."""
        route = self._routes.by_layer.get(self._name)
        if route is None:
            return F.linear(x, self.weight, self.bias)
        linear = dispatch.multi_lora_linear if self._routes.fused else segmented.multi_lora_linear
        y = linear(
            x.reshape(-1, self.in_features),
            self.weight,
            self.bias,
            route.a,
            route.b,
            route.segments,
            dropout=route.dropout,
            grads=route.grads,
        )
        return y.view(*x.shape[:-1], self.out_features)


def wrap_linears(model: nn.Module, names: list[str], routes: CurrentRoutes) -> None:
    """Replace the named linear layers of `model` in place."""
    for name in names:
        parent_name, _, child = name.rpartition(".")
        parent = model.get_submodule(parent_name)
        linear = parent.get_submodule(child)
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"{name} is a {type(linear).__name__}, want nn.Linear")
        setattr(parent, child, LoraLinear(name, linear, routes))
