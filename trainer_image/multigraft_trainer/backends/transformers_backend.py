"""The Transformers backend: packed microbatches of many adapters through one frozen Hugging Face model."""

from __future__ import annotations

import contextlib
import functools
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.slots import LinearShape
from multigraft_trainer.backends.adapter_table import AdapterTable
from multigraft_trainer.backends.attention import SampleBounds, packed_samples
from multigraft_trainer.backends.determinism import deterministic_backward
from multigraft_trainer.backends.fused_modules import fuse_modules
from multigraft_trainer.backends.fused_rotary import fuse_rotary, use_fused_rotary
from multigraft_trainer.backends.head_loss import build_head_path, compute_head_loss
from multigraft_trainer.backends.load import load_base_model
from multigraft_trainer.backends.lora_layer import CurrentRoutes, wrap_linears
from multigraft_trainer.backends.module_catalogue import ModuleCatalogue, build_catalogue
from multigraft_trainer.backends.packed import PackedMicrobatch, check_packed
from multigraft_trainer.backends.routing import build_routes
from multigraft_trainer.backends.selfcheck import check_model
from multigraft_trainer.backends.targets import ResolvedTargets, resolve_targets


def open_transformers_backend(
    folder: Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    gradient_checkpointing: bool = False,
) -> TransformersBackend:
    """Load a base model folder, check that packed training on it is exact, and give the backend.

    Raises:
        RefusalError: RemoteCodeRefused, BaseModelInvalid or NotSupported, with the file or the check that failed.
    """
    model = load_base_model(folder, dtype, torch.device(device))
    return TransformersBackend(model, gradient_checkpointing=gradient_checkpointing)


class TransformersBackend:
    """Implements `backends.backend.Backend`. Takes over the model: its linear layers are wrapped in place.

    `fused` False takes plain torch and the model's own code throughout: the reference that benchmarks compare with.
    """

    def __init__(self, model: Any, *, gradient_checkpointing: bool = False, fused: bool = True) -> None:
        self.modules: ModuleCatalogue = build_catalogue(model)
        if not self.modules.linears:
            raise RefusalError(
                Reason.NOT_SUPPORTED, f"base model: {type(model).__name__} has no nn.Linear layer to adapt"
            )
        if fused:
            fuse_modules(model, model.dtype, model.device)
            fuse_rotary(model, model.dtype, model.device)
        self._fused = fused
        with use_fused_rotary(self._fused):
            check_model(model)
        self._model = model
        self._decoder = model.get_decoder()
        self._head = build_head_path(model)
        self._routes = CurrentRoutes(fused=fused)
        self._table: AdapterTable | None = None
        self._prepared: tuple[PackedMicrobatch, dict[str, Any]] | None = None
        wrap_linears(model, list(self.modules.linears), self._routes)
        if gradient_checkpointing:
            _checkpoint_layers(model)

    @property
    def linears(self) -> dict[str, LinearShape]:
        """Give every linear layer that an adapter may target, by full module name, in the model's order."""
        return self.modules.linears

    @property
    def vocab_size(self) -> int:
        """Give the number of rows of the embedding table; every token id is below it."""
        return int(self._model.get_input_embeddings().weight.shape[0])

    @property
    def device(self) -> torch.device:
        """Give the device of the model."""
        return self._head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Give the dtype of the frozen weights and of compute."""
        return self._head.weight.dtype

    @property
    def max_positions(self) -> int | None:
        """Give the longest sample that the model has positions for, in tokens; None: it does not say."""
        return getattr(self._model.config, "max_position_embeddings", None)

    @property
    def num_parameters(self) -> int:
        """Count the frozen weights; tied ones once."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    @property
    def num_bytes(self) -> int:
        """Give the memory of the frozen weights, in bytes."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self._model.parameters())

    def resolve_targets(self, entries: list[str]) -> ResolvedTargets:
        """Resolve `lora.targetModules` on the clean base, whatever adapters are in the pool; see `targets`."""
        return resolve_targets(entries, self.modules)

    def attach(self, table: AdapterTable) -> None:
        """Set the slot pool whose adapters the microbatches name; it is built from `linears`."""
        self._table = table
        self._prepared = None

    def prepare(self, microbatch: PackedMicrobatch) -> None:
        """Do the host's part of the microbatch that comes next; see `backends.backend.Backend`."""
        self._prepared = None
        with contextlib.suppress(RefusalError, ValueError):  # raised again when the microbatch itself runs
            check_packed(microbatch, self.vocab_size)
            self._prepared = microbatch, self._build_routes(microbatch, training=True)

    def forward_backward(
        self, microbatch: PackedMicrobatch, *, meanwhile: Callable[[], None] | None = None
    ) -> list[float]:
        """Run forward and backward; add each adapter's gradients to its accumulators in the slot pool.

        Args:
            meanwhile: Called once the device has all its work and before the losses are waited for.
        Returns:
            Per segment, the sum of its token losses in nats (not divided by anything; NaN stays NaN).
        """
        return self._run(microbatch, training=True, meanwhile=meanwhile)

    def forward_loss(self, microbatch: PackedMicrobatch) -> list[float]:
        """Run forward only, without dropout; returns as `forward_backward`."""
        return self._run(microbatch, training=False)

    def _run(
        self, microbatch: PackedMicrobatch, *, training: bool, meanwhile: Callable[[], None] | None = None
    ) -> list[float]:
        routes = self._take_routes(microbatch, training=training)
        targets = torch.cat([segment.target_positions for segment in microbatch.segments] or [torch.empty(0).long()])
        if not len(targets):
            return [0.0] * len(microbatch.segments)
        target_ids = torch.cat([segment.target_ids for segment in microbatch.segments])
        self._routes.by_layer = routes
        try:
            with torch.set_grad_enabled(training), use_fused_rotary(self._fused):
                hidden = self._run_decoder(microbatch)
                picked = hidden.index_select(0, targets.to(self.device, non_blocking=True))
                losses, grad = compute_head_loss(
                    picked.detach(),
                    target_ids.to(self.device, non_blocking=True),
                    self._head,
                    with_grad=picked.requires_grad,
                    fused=self._fused,
                )
                if grad is not None:
                    with deterministic_backward(self.device):
                        torch.autograd.backward(picked, grad)
        except BaseException as error:
            # The frames keep the activations alive, and checkpointing's hooks installed, as long as someone holds the
            # error; the next microbatch needs the memory and must not run under these hooks.
            traceback.clear_frames(error.__traceback__)
            raise
        finally:
            self._routes.by_layer = {}
        if meanwhile is not None:
            meanwhile()
        return _sum_by_segment(losses, microbatch)

    def _take_routes(self, microbatch: PackedMicrobatch, *, training: bool) -> dict[str, Any]:
        prepared, self._prepared = self._prepared, None
        if training and prepared is not None and prepared[0] is microbatch:
            return prepared[1]
        check_packed(microbatch, self.vocab_size)
        return self._build_routes(microbatch, training=training)

    def _build_routes(self, microbatch: PackedMicrobatch, *, training: bool) -> dict[str, Any]:
        if self._table is None:
            if any(segment.slot >= 0 for segment in microbatch.segments):
                raise RuntimeError("the microbatch names slots, but no slot pool is attached; call attach() first")
            return {}
        return build_routes(microbatch, self._table, self.device, training=training)

    def _run_decoder(self, microbatch: PackedMicrobatch) -> torch.Tensor:
        """Give the last hidden states, [T, H]."""
        samples = SampleBounds.build([(sample.start, sample.end) for sample in microbatch.samples], self.device)
        with packed_samples(samples):
            output = self._decoder(
                input_ids=microbatch.input_ids[None].to(self.device, non_blocking=True),
                position_ids=microbatch.positions[None].to(self.device, non_blocking=True),
                use_cache=False,
            )
        hidden: torch.Tensor = output.last_hidden_state.squeeze(0)
        return hidden


def _sum_by_segment(losses: torch.Tensor, microbatch: PackedMicrobatch) -> list[float]:
    """Sum each segment's token losses exactly: the sum does not depend on order or on neighbours."""
    values = iter(losses.cpu().tolist())
    return [math.fsum(next(values) for _ in segment.target_ids) for segment in microbatch.segments]


def _checkpoint_layers(model: nn.Module) -> None:
    """Recompute each decoder layer in backward. Nothing draws from a random stream, so none is saved."""
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.forward = functools.partial(
                checkpoint, module.forward, use_reentrant=False, preserve_rng_state=False
            )
