"""The account of every row of a file, and the one refusal that it may end in."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from multigraft.api.adapter_job import BadRowPolicy, LongSamplePolicy
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake.codes import RowCode
from multigraft_trainer.intake.limits import MAX_MESSAGE_CHARS
from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.samples import DroppedRow, IntakeReport

_SHOWN_ROWS = 3


@dataclass(frozen=True)
class OutOfRange:
    """A token id that the embedding table does not have."""

    row: int
    token: str
    token_id: int


@dataclass
class Account:
    """Counts rows as they come: each is trained, or dropped with a code."""

    name: str  # of the file, as shown in messages
    num_trained: int = 0
    num_truncated: int = 0
    dropped: list[DroppedRow] = field(default_factory=list)
    out_of_range: list[OutOfRange] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return self.num_trained + len(self.dropped)

    def conclude(self, options: IntakeOptions, *, embedding_rows: int) -> IntakeReport:
        """Give the report, once the whole file has been read.

        Raises:
            RefusalError: `TokenOutOfRange`, `DatasetEmpty` if no row is left, `InvalidDataset` if a row was dropped
                that the policies do not allow to drop. Counts per code and first row numbers, at most 500 characters.
        """
        self.dropped.sort(key=lambda row: row.row)
        if self.out_of_range:
            raise self._refuse_tokens(embedding_rows)
        too_long_fails = options.long_sample_policy is LongSamplePolicy.FAIL
        too_long = [row for row in self.dropped if row.code == RowCode.SAMPLE_TOO_LONG]
        if too_long and too_long_fails:
            text = f"{len(too_long)} of {self.num_rows} samples are too long (longSamplePolicy Fail)"
            raise RefusalError(Reason.INVALID_DATASET, f"dataset {self.name}: {text}: {_summarise(too_long)}")
        if not self.num_trained:
            raise RefusalError(Reason.DATASET_EMPTY, f"dataset {self.name}: {self._describe_empty()}")
        bad = [row for row in self.dropped if row.code != RowCode.SAMPLE_TOO_LONG]
        if bad and options.bad_row_policy is BadRowPolicy.FAIL:
            text = f"{len(bad)} of {self.num_rows} rows cannot be used (badRowPolicy Fail)"
            raise RefusalError(Reason.INVALID_DATASET, f"dataset {self.name}: {text}: {_summarise(bad)}")
        return IntakeReport(self.num_rows, self.num_trained, self.num_truncated, tuple(self.dropped))

    def _describe_empty(self) -> str:
        if not self.num_rows:
            return "no row to train: 0 rows read, the file is empty or blank"
        return f"no row to train: {self.num_rows} rows read, {len(self.dropped)} dropped: {_summarise(self.dropped)}"

    def _refuse_tokens(self, embedding_rows: int) -> RefusalError:
        first = min(self.out_of_range, key=lambda item: item.row)
        num_rows = len({item.row for item in self.out_of_range})
        return RefusalError(
            Reason.TOKEN_OUT_OF_RANGE,
            f"dataset {self.name}, row {first.row}: token {first.token[:40]!a} has id {first.token_id}, but the base "
            f"model's embedding table has {embedding_rows} rows (ids 0 to {embedding_rows - 1}); so in {num_rows} rows",
        )


def _summarise(rows: list[DroppedRow]) -> str:
    """List counts per code with first row numbers, then what is wrong with the first rows, as far as there is room."""
    by_code: dict[str, list[DroppedRow]] = defaultdict(list)
    for row in rows:
        by_code[row.code].append(row)
    counts = [f"{code} {len(group)} ({_row_numbers(group)})" for code, group in by_code.items()]
    text = _join_within(counts, ", ", MAX_MESSAGE_CHARS - 150, "codes")
    firsts = [group[place] for place in range(_SHOWN_ROWS) for group in by_code.values() if place < len(group)]
    for row in firsts:
        detail = f"; row {row.row}: {row.message}"
        if len(text) + len(detail) > MAX_MESSAGE_CHARS - 150:
            break
        text += detail
    return text


def _row_numbers(rows: list[DroppedRow]) -> str:
    numbers = ", ".join(str(row.row) for row in rows[:_SHOWN_ROWS])
    return f"row{'s' if len(rows) > 1 else ''} {numbers}{', ...' if len(rows) > _SHOWN_ROWS else ''}"


def _join_within(parts: list[str], separator: str, max_chars: int, noun: str) -> str:
    text = ""
    for index, part in enumerate(parts):
        added = part if not text else separator + part
        if len(text) + len(added) > max_chars:
            return f"{text} and {len(parts) - index} more {noun}"
        text += added
    return text
