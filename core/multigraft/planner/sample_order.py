"""The order in which an adapter visits its samples: endless, seeded, the same on every machine and NumPy version.

Epochs lie end to end. Each is a shuffle that depends on (seed, epoch, number of samples) alone and is cut into global
batches; the last one of an epoch may be smaller (Hugging Face's `DataLoader(drop_last=False)`), so that a global batch
never holds samples of two epochs and every sample is visited once per epoch.

A visit is a *draw*: draw = epoch * num_samples + position in the epoch. It is unique over the whole run.

The shuffle sorts raw Philox-4x64-10 words (Salmon et al. 2011), whose stream NumPy keeps stable across versions, unlike
that of `Generator.permutation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from multigraft.planner.plan import GlobalBatch, SampleRef

SAMPLE_ORDER_STREAM = (
    0x6F72646572  # "order" in ASCII: second key word, so that no other use of a seed shares the stream
)
EPOCHS_KEPT = 2  # a global batch at an epoch's end is followed by one of the next epoch


def build_epoch_order(seed: int, epoch: int, num_samples: int) -> NDArray[np.int64]:
    """Build the row indices of one epoch in visiting order, [num_samples], each of 0..num_samples-1 once."""
    words = np.random.Philox(key=[seed, SAMPLE_ORDER_STREAM], counter=[0, epoch, num_samples, 0])
    return np.argsort(words.random_raw(num_samples), kind="stable").astype(np.int64)


@dataclass(frozen=True)
class SampleOrder:
    """The sample order of one adapter.

    Raises:
        ValueError: If the seed is negative, or `num_samples` or `global_batch_size` is below 1.
    """

    seed: int
    num_samples: int
    global_batch_size: int
    _epochs: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed: got {self.seed}, allowed 0 to 2**64 - 1")
        if self.num_samples < 1:
            raise ValueError(f"num_samples: got {self.num_samples}, allowed 1 or more")
        if self.global_batch_size < 1:
            raise ValueError(f"global_batch_size: got {self.global_batch_size}, allowed 1 or more")

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch: ceil(num_samples / global_batch_size)."""
        return -(-self.num_samples // self.global_batch_size)

    def count_steps(self, *, max_steps: int | None = None, num_train_epochs: int | None = None) -> int:
        """Count the optimizer steps of a whole run from whichever of the two limits is given.

        Raises:
            ValueError: If not exactly one is given, or it is below 1.
        """
        if (max_steps is None) == (num_train_epochs is None):
            raise ValueError(
                f"maxSteps={max_steps}, numTrainEpochs={num_train_epochs}: exactly one of them must be set"
            )
        limit = max_steps if max_steps is not None else num_train_epochs
        if limit is None or limit < 1:
            raise ValueError(
                f"{'maxSteps' if max_steps is not None else 'numTrainEpochs'}: got {limit}, allowed 1 or more"
            )
        return limit if max_steps is not None else limit * self.steps_per_epoch

    def epoch_of(self, step: int) -> int:
        """Give the epoch that the 0-based optimizer step belongs to."""
        return step // self.steps_per_epoch

    def draws(self, step: int) -> range:
        """Give the draws of the global batch of the 0-based optimizer step, in order.

        Raises:
            ValueError: If the step is negative.
        """
        if step < 0:
            raise ValueError(f"step: got {step}, allowed 0 or more")
        epoch, batch = divmod(step, self.steps_per_epoch)
        start = batch * self.global_batch_size
        end = min(start + self.global_batch_size, self.num_samples)
        return range(epoch * self.num_samples + start, epoch * self.num_samples + end)

    def row(self, draw: int) -> int:
        """Give the 0-based index of the sample that a draw visits.

        Raises:
            ValueError: If the draw is negative.
        """
        if draw < 0:
            raise ValueError(f"draw: got {draw}, allowed 0 or more")
        epoch, position = divmod(draw, self.num_samples)
        return int(self._epoch_order(epoch)[position])

    def rows(self, step: int) -> list[int]:
        """Give the 0-based sample indices of the global batch of `step`, in the order of its draws."""
        return [self.row(draw) for draw in self.draws(step)]

    def build_global_batch(self, step: int, lengths: Sequence[int] | NDArray[np.integer]) -> GlobalBatch:
        """Build the global batch of the 0-based optimizer step for the planner.

        Args:
            step: 0-based optimizer step.
            lengths: Tokens of each sample by its index, [num_samples].

        Raises:
            ValueError: If the number of lengths is not `num_samples`.
        """
        if len(lengths) != self.num_samples:
            raise ValueError(f"lengths: got {len(lengths)} entries, allowed {self.num_samples} (one per sample)")
        return GlobalBatch(step, tuple(SampleRef(draw, int(lengths[self.row(draw)])) for draw in self.draws(step)))

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._epochs:
            while len(self._epochs) >= EPOCHS_KEPT:
                del self._epochs[next(iter(self._epochs))]
            self._epochs[epoch] = build_epoch_order(self.seed, epoch, self.num_samples)
        return self._epochs[epoch]
