"""The same adapter under PEFT: one sample at a time, Transformers' own attention, plain cross-entropy, autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from builders.fixed_table import Weights
from multigraft_kernels.counter_dropout import DropoutRows, DropoutTable, build_threshold
from multigraft_kernels.counter_dropout.reference import build_multiplier
from multigraft_kernels.philox import build_key, build_site
from multigraft_trainer.adapters.slots import AdapterOptions
from multigraft_trainer.intake.samples import TokenisedSample


@dataclass
class PeftRun:
    """What PEFT gives for one adapter."""

    loss: float  # sum over tokens, nats
    grads: Weights  # of loss_weight * loss


class KeyedDropout(nn.Module):
    """Our dropout by its definition, in the place of PEFT's random one."""

    def __init__(self, name: str, options: AdapterOptions) -> None:
        super().__init__()
        key = build_key(options.seed, build_site(name))
        self.table = DropoutTable.build([key], [build_threshold(options.dropout)])
        self.rows: DropoutRows | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.rows is not None
        return x * build_multiplier(self.rows, self.table, x.shape[-1])


def build_peft_model(folder: Path, options: AdapterOptions, weights: Weights) -> Any:
    """Load the base and put the adapter on it with PEFT."""
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    config = peft.LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # type: ignore[arg-type]
        use_rslora=options.use_rslora,
        target_modules=list(options.target_names),
    )
    model = peft.get_peft_model(base, config)
    for name in options.target_names:
        layer = model.base_model.model.get_submodule(name)
        layer.lora_dropout["default"] = KeyedDropout(name, options)
        for linear, value in zip((layer.lora_A["default"], layer.lora_B["default"]), weights[name], strict=True):
            linear.weight.data.copy_(value)
    return model


def _build_rows(num_tokens: int, draw: int, step: int) -> DropoutRows:
    values = np.zeros((4, num_tokens), dtype=np.uint32)
    values[1:] = np.arange(num_tokens), np.full(num_tokens, draw), np.full(num_tokens, step)
    return DropoutRows(*torch.from_numpy(values.view(np.int32)).unbind())


def run_peft(
    folder: Path,
    options: AdapterOptions,
    weights: Weights,
    samples: Sequence[tuple[TokenisedSample, int]],
    *,
    loss_weight: float = 1.0,
    step: int = 0,
    dropout: bool = True,
) -> PeftRun:
    """Run the samples (with their draws) one by one and sum their gradients."""
    model = build_peft_model(folder, options, weights)
    layers = {name: model.base_model.model.get_submodule(name) for name in options.target_names}
    total = 0.0
    for sample, draw in samples:
        rows = _build_rows(sample.num_tokens, draw, step)
        for layer in layers.values():
            layer.lora_dropout["default"].rows = rows
            if not dropout:
                layer.lora_dropout["default"] = nn.Identity()
        ids = torch.from_numpy(sample.input_ids.astype("int64"))
        targets = torch.from_numpy(sample.supervised.nonzero()[0])
        logits = model(input_ids=ids[None], use_cache=False).logits[0].float()
        loss = F.cross_entropy(logits[targets - 1], ids[targets], reduction="sum")
        if len(targets):
            (loss * loss_weight).backward()
        total += loss.item()
    grads = {}
    for name, layer in layers.items():
        pair = (layer.lora_A["default"].weight, layer.lora_B["default"].weight)
        grads[name] = tuple(torch.zeros_like(w) if w.grad is None else w.grad for w in pair)
    return PeftRun(total, grads)  # type: ignore[arg-type]
