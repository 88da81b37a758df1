"""Trial passes on a shared base without jobs: every slot holds an adapter of full rank, afterwards none does again."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.adapters.slots import AdapterOptions
from multigraft_trainer.backends.backend import Backend
from multigraft_trainer.backends.packed import PackedMicrobatch
from multigraft_trainer.capacity.device_memory import free_memory, is_out_of_memory, wait_for_device
from multigraft_trainer.capacity.fit_cost import TimedSize
from multigraft_trainer.capacity.trial_shape import Shape, build_hardest_shape, build_trial_microbatch

TRIAL_DROPOUT = 0.1  # the rate does not matter, that there is one does: masks are made in every pass
REPEATS = 2  # after one pass that is not timed


@dataclass(frozen=True)
class TrialPool:
    """What the trials stand for."""

    max_slots: int
    max_rank: int
    target_names: tuple[str, ...]  # layers that an adapter of this pool may target
    tile_tokens: int
    longest_sample: int | None  # tokens that the model takes; None: any number


@contextmanager
def open_trials(backend: Backend, slots: SlotPool, pool: TrialPool) -> Iterator[Trials]:
    """Fill every slot, and afterwards wipe and free all of them, whatever happened.

    Raises:
        RefusalError: OUT_OF_MEMORY, if the adapters alone do not fit.
        RuntimeError: If a job holds a slot: nothing of it may be touched.
    """
    if slots.occupied:
        raise RuntimeError(f"slots {slots.occupied} hold adapters; trials need an empty pool")
    try:
        _fill(slots, pool)
        yield Trials(backend, slots.occupied, pool)
    finally:
        for slot in slots.occupied:
            slots.release(slot)
        free_memory()


def _fill(slots: SlotPool, pool: TrialPool) -> None:
    for number in range(pool.max_slots):
        options = AdapterOptions(
            rank=pool.max_rank,
            alpha=float(pool.max_rank),
            use_rslora=False,
            dropout=TRIAL_DROPOUT,
            seed=number,
            target_names=pool.target_names,
        )
        try:
            slots.acquire(options)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            text = f"{number} of {pool.max_slots} adapters of rank {pool.max_rank} fit beside the base model"
            raise RefusalError(
                Reason.OUT_OF_MEMORY, f"spec.slots: {text}; lower slots.max or slots.maxRank ({_first_line(error)})"
            ) from None


class Trials:
    """Runs trial microbatches; use inside `open_trials`."""

    def __init__(self, backend: Backend, slots: tuple[int, ...], pool: TrialPool) -> None:
        self._backend = backend
        self._slots = slots
        self._pool = pool
        self.num_passes = 0
        self.last_refusal = ""  # first line of the last error that said memory ran out

    def fits(self, num_tokens: int) -> bool:
        """Tell whether forward and backward of the hardest microbatch of this size run; memory is given back."""
        shape = build_hardest_shape(
            num_tokens,
            num_adapters=self._pool.max_slots,
            tile_tokens=self._pool.tile_tokens,
            longest=self._pool.longest_sample,
        )
        microbatch = self._build(shape)
        self.num_passes += 1
        try:
            self._backend.forward_backward(microbatch)
            wait_for_device()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)  # they keep the activations alive
            self.last_refusal = _first_line(error)
            return False
        finally:
            free_memory()
        return True

    def time(self, shape: Shape) -> TimedSize:
        """Time forward and backward of one microbatch; the faster of `REPEATS`."""
        microbatch = self._build(shape)
        both_ms = self._time_ms(microbatch, training=True)
        forward_ms = self._time_ms(microbatch, training=False)
        return TimedSize(
            num_tokens=sum(map(self._pad, map(sum, shape))),
            num_pairs=sum(length**2 for lengths in shape for length in lengths),
            forward_ms=forward_ms,
            backward_ms=max(both_ms - forward_ms, 1e-3),  # a forward without gradients may be the slower one by chance
        )

    def _time_ms(self, microbatch: PackedMicrobatch, *, training: bool) -> float:
        run = self._backend.forward_backward if training else self._backend.forward_loss
        run(microbatch)
        seconds = []
        for _ in range(REPEATS):
            wait_for_device()
            started = time.perf_counter()
            run(microbatch)
            wait_for_device()
            seconds.append(time.perf_counter() - started)
        self.num_passes += REPEATS + 1
        return 1e3 * min(seconds)

    def _build(self, shape: Shape) -> PackedMicrobatch:
        return build_trial_microbatch(shape, self._slots, vocab_size=self._backend.vocab_size)

    def _pad(self, num_tokens: int) -> int:
        tile = self._pool.tile_tokens
        return -(-num_tokens // tile) * tile


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:160] if str(error) else type(error).__name__
