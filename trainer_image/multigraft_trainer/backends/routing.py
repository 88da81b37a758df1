"""Turn a packed microbatch and the slot pool into what each linear layer has to do."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

from multigraft_kernels.counter_dropout import DropoutRows, DropoutTable, build_threshold
from multigraft_kernels.counter_dropout.rows import NOT_TARGETED, build_scale
from multigraft_kernels.multi_lora.segments import LoraGrads, LoraSegment
from multigraft_kernels.philox import MASK_32, build_key, build_site
from multigraft_trainer.adapters.slots import AdapterOptions
from multigraft_trainer.backends.adapter_table import AdapterTable
from multigraft_trainer.backends.lora_layer import LayerRoute
from multigraft_trainer.backends.packed import PackedMicrobatch, PackedSegment


def build_routes(
    microbatch: PackedMicrobatch, table: AdapterTable, device: torch.device, *, training: bool
) -> dict[str, LayerRoute]:
    """Build the route of every layer that an adapter of the microbatch targets.

    Args:
        microbatch: The tokens and whose they are.
        table: The slot pool.
        device: Device of the model.
        training: False: no dropout and no gradients.
    """
    segments = [segment for segment in microbatch.segments if segment.slot >= 0 and segment.end > segment.start]
    slots = sorted({segment.slot for segment in segments})
    options = {slot: table.options(slot) for slot in slots}
    by_layer: dict[str, list[PackedSegment]] = {}
    for segment in segments:
        for name in options[segment.slot].target_names:
            by_layer.setdefault(name, []).append(segment)
    dropout = _build_dropout(microbatch, options, list(by_layer), device) if training else {}
    # Built once, not once per layer: hundreds of layers wait for this while the device idles.
    built = {segment.start: _build_segment(segment, options[segment.slot]) for segment in segments}
    return {
        name: LayerRoute(
            a=table.stacked_a(name),
            b=table.stacked_b(name),
            segments=tuple(built[segment.start] for segment in layer),
            dropout=dropout.get(name),
            grads=_build_grads(name, layer, table) if training else None,
        )
        for name, layer in by_layer.items()
    }


def _build_segment(segment: PackedSegment, options: AdapterOptions) -> LoraSegment:
    return LoraSegment(
        slot=segment.slot,
        start=segment.start,
        end=segment.end,
        rank=options.rank,
        scaling=options.scaling,
        # The loss is back-propagated unweighted: its weight (about 1e-4) would underflow in fp16 on the way down.
        grad_weight=segment.loss_weight,
    )


def _build_grads(name: str, segments: Sequence[PackedSegment], table: AdapterTable) -> tuple[LoraGrads, ...]:
    sinks = (table.grads(segment.slot, name) for segment in segments)
    return tuple(LoraGrads(sink.a, sink.b) for sink in sinks)


def _build_dropout(
    microbatch: PackedMicrobatch, options: dict[int, AdapterOptions], names: list[str], device: torch.device
) -> dict[str, tuple[DropoutRows, DropoutTable]]:
    """Give rows and table of every layer at which some targeting adapter drops something."""
    thresholds = {slot: build_threshold(adapter.dropout) for slot, adapter in options.items()}
    if not any(thresholds.values()):
        return {}
    slots = list(options)
    rows = _build_rows(microbatch, {slot: index for index, slot in enumerate(slots)}).to(device)
    targets = {slot: frozenset(adapter.target_names) for slot, adapter in options.items()}
    layers = np.array(
        [[thresholds[slot] if name in targets[slot] else NOT_TARGETED for slot in slots] for name in names], np.int32
    )
    keys = np.array([[_build_key(options[slot].seed, name) for slot in slots] for name in names], np.uint64)
    scales = torch.tensor([build_scale(thresholds[slot]) for slot in slots], dtype=torch.float32)
    # One table for all layers and one transfer each; a layer's row is a view.
    tables = DropoutTable(torch.from_numpy(keys.view(np.int64)), torch.from_numpy(layers), scales).to(device)
    return {
        name: (rows, DropoutTable(tables.keys[index], tables.thresholds[index], tables.scales))
        for index, name in enumerate(names)
        if (layers[index] > 0).any()
    }


@functools.lru_cache(maxsize=65_536)
def _build_key(seed: int, name: str) -> int:
    return build_key(seed, build_site(name))


def _build_rows(microbatch: PackedMicrobatch, index_of: dict[int, int]) -> DropoutRows:
    num_tokens = len(microbatch.input_ids)
    adapter = np.full(num_tokens, -1, dtype=np.int32)
    draw, step = np.zeros((2, num_tokens), dtype=np.uint32)
    for segment in microbatch.segments:
        if segment.slot < 0:
            continue
        adapter[segment.start : segment.end] = index_of.get(segment.slot, -1)
        step[segment.start : segment.end] = segment.step & MASK_32
        for sample in segment.samples:
            draw[sample.start : sample.end] = sample.draw & MASK_32
    position = microbatch.positions.cpu().numpy().astype(np.uint32)
    return DropoutRows(*(torch.from_numpy(values.view(np.int32)) for values in (adapter, position, draw, step)))
