"""What of a job's spec decides how its dataset is read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from multigraft.api.adapter_job import BadRowPolicy, Dataset, DatasetFormat, LongSamplePolicy, Training

# What templates that print today's date see. A fixed day, because a dataset that changes with the day could not be
# resumed exactly; this one is the day that Llama 3's own template falls back to.
RENDER_DATE = datetime(2024, 7, 26)


@dataclass(frozen=True)
class IntakeOptions:
    """Options of `load_dataset`; each is part of the cache key."""

    format: DatasetFormat = DatasetFormat.CONVERSATIONAL
    bad_row_policy: BadRowPolicy = BadRowPolicy.FAIL
    long_sample_policy: LongSamplePolicy = LongSamplePolicy.TRUNCATE
    max_seq_length: int = 2048  # tokens
    render_date: datetime = RENDER_DATE

    @classmethod
    def from_spec(cls, dataset: Dataset, training: Training) -> Self:
        """Take the options from a job's spec."""
        return cls(
            format=dataset.format,
            bad_row_policy=dataset.bad_row_policy,
            long_sample_policy=dataset.long_sample_policy,
            max_seq_length=training.max_seq_length,
        )
