"""The slot pool: stacked compute copies of every resident adapter on one shared base, and who holds which slot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.adapter import Adapter, ComputeCopy
from multigraft_trainer.adapters.peft_tensors import list_some
from multigraft_trainer.adapters.slots import AdapterOptions, LinearShape, ModuleGrads

INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class _Stack:
    a: torch.Tensor  # [slots, maxRank, in], compute dtype
    b: torch.Tensor  # [slots, out, maxRank], compute dtype

    def of_slot(self, slot: int) -> ComputeCopy:
        return ComputeCopy(self.a[slot], self.b[slot])


class SlotPool:
    """Places for `max_slots` adapters of rank up to `max_rank`. Implements `backends.adapter_table.AdapterTable`.

    Stacks exist only for linear layers that some resident adapter targets, and go with the last one that does.
    """

    def __init__(
        self,
        linears: Mapping[str, LinearShape],
        *,
        max_slots: int,
        max_rank: int,
        device: torch.device | str,
        compute_dtype: torch.dtype,
    ) -> None:
        if max_slots < 1 or max_rank < 1:
            raise ValueError(f"max_slots and max_rank must be at least 1, got {max_slots} and {max_rank}")
        self._linears = dict(linears)
        self._max_slots = max_slots
        self._max_rank = max_rank
        self._device = torch.device(device)
        self._compute_dtype = compute_dtype
        self._stacks: dict[str, _Stack] = {}
        self._adapters: dict[int, Adapter] = {}

    @property
    def linears(self) -> dict[str, LinearShape]:
        """Give every linear layer that an adapter may target."""
        return dict(self._linears)

    @property
    def occupied(self) -> tuple[int, ...]:
        """Give the slots that hold an adapter, in order."""
        return tuple(sorted(self._adapters))

    @property
    def num_free(self) -> int:
        """Count free slots."""
        return self._max_slots - len(self._adapters)

    def acquire(self, options: AdapterOptions) -> int:
        """Place a fresh adapter, initialised from its own seed, into the lowest free slot and give the slot's number.

        Raises:
            RefusalError: NO_FREE_SLOT, RANK_EXCEEDS_POOL, TARGET_MODULES_NOT_FOUND or INVALID_SPEC. Nothing is changed.
        """
        self._check(options)
        if not self.num_free:
            raise RefusalError(
                Reason.NO_FREE_SLOT, f"needed 1 slot, free 0 of {self._max_slots}; all hold adapters that still train"
            )
        slot = min(set(range(self._max_slots)) - self._adapters.keys())
        for name in options.target_names:
            if name not in self._stacks:
                self._stacks[name] = self._build_stack(self._linears[name])
        compute = {name: self._stacks[name].of_slot(slot) for name in options.target_names}
        adapter = Adapter(options, self._linears, compute, self._device)
        adapter.initialise()
        self._adapters[slot] = adapter
        return slot

    def release(self, slot: int) -> None:
        """Wipe the adapter in `slot` (weights, gradients, moments, compute copy) and free the slot.

        Raises:
            KeyError: If the slot is free already.
        """
        self._adapters.pop(slot).wipe()
        needed = {name for adapter in self._adapters.values() for name in adapter.options.target_names}
        for name in self._stacks.keys() - needed:
            del self._stacks[name]

    def adapter(self, slot: int) -> Adapter:
        """Give the adapter in `slot`; KeyError if the slot is free."""
        return self._adapters[slot]

    def options(self, slot: int) -> AdapterOptions:
        """Give the options of the adapter in `slot`; KeyError if the slot is free."""
        return self._adapters[slot].options

    def stacked_a(self, name: str) -> torch.Tensor:
        """Give A of every slot at linear layer `name`: [slots, maxRank, in]; KeyError if no adapter targets it."""
        return self._stacks[name].a

    def stacked_b(self, name: str) -> torch.Tensor:
        """Give B of every slot at linear layer `name`: [slots, out, maxRank]; KeyError if no adapter targets it."""
        return self._stacks[name].b

    def grads(self, slot: int, name: str) -> ModuleGrads:
        """Give the fp32 accumulators of the adapter in `slot` at `name`; KeyError if there is none."""
        return self._adapters[slot].module_grads(name)

    def _build_stack(self, linear: LinearShape) -> _Stack:
        slots, rank, dtype, device = self._max_slots, self._max_rank, self._compute_dtype, self._device
        return _Stack(
            a=torch.zeros(slots, rank, linear.in_features, dtype=dtype, device=device),
            b=torch.zeros(slots, linear.out_features, rank, dtype=dtype, device=device),
        )

    def _check(self, options: AdapterOptions) -> None:
        if options.rank > self._max_rank:
            raise RefusalError(
                Reason.RANK_EXCEEDS_POOL, f"lora.r: got {options.rank}, the pool's slots.maxRank is {self._max_rank}"
            )
        _check_numbers(options)
        if not options.target_names:
            raise RefusalError(Reason.TARGET_MODULES_NOT_FOUND, "lora.targetModules: matches no linear layer")
        unknown = [name for name in options.target_names if name not in self._linears]
        if unknown:
            raise RefusalError(
                Reason.TARGET_MODULES_NOT_FOUND, f"lora.targetModules: no linear layer is named {list_some(unknown)}"
            )


def _check_numbers(options: AdapterOptions) -> None:
    problems = {
        f"lora.r: got {options.rank}, want at least 1": options.rank < 1,
        f"lora.loraAlpha: got {options.alpha}, want a finite number above 0": not 0 < options.alpha < math.inf,
        f"lora.loraDropout: got {options.dropout}, want 0 <= p < 1": not 0 <= options.dropout < 1,
        f"training.seed: got {options.seed}, want 0 to {INT64_MAX}": not 0 <= options.seed <= INT64_MAX,
        "lora.targetModules: a linear layer is named twice": len(set(options.target_names)) < len(options.target_names),
    }
    for message, is_wrong in problems.items():
        if is_wrong:
            raise RefusalError(Reason.INVALID_SPEC, message)
