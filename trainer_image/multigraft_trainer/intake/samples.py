"""Tokenised samples: what intake hands to the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenisedSample:
    """One row after template, tokenizer, truncation and mask."""

    row: int  # physical line number in the file (row index for Parquet), 1-based
    input_ids: NDArray[np.int32]  # [L]
    supervised: NDArray[np.bool_]  # [L]; token t is a target, predicted from t-1; supervised[0] is False

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def num_supervised(self) -> int:
        return int(self.supervised.sum())


@dataclass(frozen=True)
class DroppedRow:
    """A row that is not trained, and why."""

    row: int
    code: str  # CamelCase, from a fixed list
    message: str  # names the field and what is allowed; never text of the row


@dataclass(frozen=True)
class IntakeReport:
    """The account of every row: num_rows = num_trained + len(dropped)."""

    num_rows: int
    num_trained: int
    num_truncated: int
    dropped: tuple[DroppedRow, ...] = field(default=())


@dataclass(frozen=True)
class TokenisedDataset:
    """All samples that train, in file order, and the account of those that do not."""

    samples: tuple[TokenisedSample, ...]
    report: IntakeReport
    fingerprint: str  # SHA-256 over token ids and masks: what is trained, however it was read

    @classmethod
    def build(cls, samples: Iterable[TokenisedSample], report: IntakeReport) -> Self:
        """Build a dataset with its fingerprint, which a later version of intake gives too if the samples are equal."""
        kept = tuple(samples)
        digest = hashlib.sha256(np.asarray([sample.num_tokens for sample in kept], dtype="<i8").tobytes())
        for sample in kept:
            digest.update(sample.input_ids.astype("<i4").tobytes())
            digest.update(sample.supervised.astype("u1").tobytes())
        return cls(kept, report, digest.hexdigest())
