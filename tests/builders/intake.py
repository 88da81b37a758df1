"""Datasets and what intake makes of them, in few words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from builders.tiny_base import CHAT_TEMPLATE, VOCAB_SIZE, build_tiny_tokenizer
from multigraft_trainer.intake.load import load_dataset
from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.rows import read_rows
from multigraft_trainer.intake.samples import TokenisedDataset, TokenisedSample
from multigraft_trainer.intake.tokenizer import IntakeTokenizer


def write_lines(path: Path, lines: Iterable[bytes | str | dict[str, Any]]) -> Path:
    """Write one line each; objects as JSON."""
    encoded = (line if isinstance(line, bytes) else _text(line).encode() for line in lines)
    path.write_bytes(b"".join(line + b"\n" for line in encoded))
    return path


def _text(line: str | dict[str, Any]) -> str:
    return line if isinstance(line, str) else json.dumps(line)


def chat(*contents: str | None, **columns: Any) -> dict[str, Any]:
    """Build a row in which user and assistant take turns, the user first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
    return {"messages": messages, **columns}


@cache
def tiny_tokenizer(template: str | None = CHAT_TEMPLATE, *, pad_is_eos: bool = False) -> IntakeTokenizer:
    """Give the tiny base's tokenizer: one token per byte and own special tokens."""
    return IntakeTokenizer.from_fast(build_tiny_tokenizer(chat_template=template, pad_is_eos=pad_is_eos))


def load(
    path: Path, *, tokenizer: IntakeTokenizer | None = None, cache_dir: Path | None = None, **options: Any
) -> TokenisedDataset:
    """Load with the tiny tokenizer."""
    return load_dataset(
        path,
        options=IntakeOptions(**options),
        tokenizer=tokenizer or tiny_tokenizer(),
        embedding_rows=VOCAB_SIZE,
        cache_dir=cache_dir,
    )


def supervised_text(sample: TokenisedSample, tokenizer: IntakeTokenizer | None = None) -> str:
    """Decode the supervised tokens."""
    return decode(sample.input_ids[sample.supervised].tolist(), tokenizer)


def whole_text(sample: TokenisedSample, tokenizer: IntakeTokenizer | None = None) -> str:
    """Decode all tokens."""
    return decode(sample.input_ids.tolist(), tokenizer)


def decode(ids: list[int], tokenizer: IntakeTokenizer | None = None) -> str:
    """Decode with special tokens."""
    text: str = (tokenizer or tiny_tokenizer()).backend.decode(ids, skip_special_tokens=False)
    return text


def codes(path: Path) -> list[tuple[int, str]]:
    """Give (row, code) of the rows that cannot be parsed."""
    return [(row.row, row.code) for row in read_rows(path) if not hasattr(row, "value")]


def dropped_codes(dataset: TokenisedDataset) -> list[tuple[int, str]]:
    """Give (row, code) of the rows that a loaded dataset dropped."""
    return [(row.row, row.code) for row in dataset.report.dropped]
