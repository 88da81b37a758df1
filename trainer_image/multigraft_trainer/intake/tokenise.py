"""From prepared texts to samples: tokenise, truncate, mask, check ids. In batches, as the fast tokenizer likes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from multigraft.api.adapter_job import LongSamplePolicy
from multigraft_trainer.intake.account import Account, OutOfRange
from multigraft_trainer.intake.batching import iterate_batches
from multigraft_trainer.intake.codes import RowCode
from multigraft_trainer.intake.mask import build_mask
from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.samples import DroppedRow, TokenisedSample
from multigraft_trainer.intake.tokenizer import IntakeTokenizer

_BATCH_ROWS = 512
_BATCH_CHARS = 2**20
# A text of many more characters than the tokens that are kept can hold is cut before it is tokenised: an encoding takes
# some 150 bytes per token, and most would be thrown away.
_CHARS_PER_TOKEN = 64


@dataclass(frozen=True)
class PreparedText:
    """Text of one row, ready for the tokenizer."""

    row: int
    text: str
    spans: tuple[tuple[int, int], ...]  # supervised characters, [start, end)
    # rendered by the chat template, which prints special tokens itself; else the tokenizer adds bos, and we add eos
    is_rendered: bool


@dataclass(frozen=True)
class Tokeniser:
    """Turns prepared texts into samples and books every one."""

    tokenizer: IntakeTokenizer
    options: IntakeOptions
    embedding_rows: int
    account: Account

    def tokenise(self, texts: Iterable[PreparedText]) -> Iterator[TokenisedSample]:
        """Give the samples that train, in order; the others go to the account."""
        batches = iterate_batches(texts, max_items=_BATCH_ROWS, max_size=_BATCH_CHARS, size=lambda text: len(text.text))
        for batch in batches:
            for is_rendered in (True, False):
                group = [text for text in batch if text.is_rendered is is_rendered]
                for text, encoding in zip(group, self._encode(group, add_special_tokens=not is_rendered), strict=True):
                    sample = self._build_sample(text, encoding.ids, encoding.offsets)
                    if sample is not None:
                        yield sample

    def _encode(self, texts: Sequence[PreparedText], *, add_special_tokens: bool) -> Iterator[Encoding]:
        encode = partial(self.tokenizer.backend.encode_batch, add_special_tokens=add_special_tokens)
        limit, margin = self.options.max_seq_length, 2 * self.tokenizer.longest_token
        max_chars = _CHARS_PER_TOKEN * limit + 2 * margin
        for text, encoding in zip(texts, encode([text.text[:max_chars] for text in texts]), strict=True):
            # no token that is kept may lie so near the cut that it depends on it; else (long runs of white space) all
            # of the text is tokenised
            is_whole = len(text.text) <= max_chars
            is_certain = is_whole or (len(encoding) > limit and encoding.offsets[limit - 1][1] + margin <= max_chars)
            yield encoding if is_certain else encode([text.text])[0]

    def _build_sample(
        self, text: PreparedText, ids: list[int], offsets: list[tuple[int, int]]
    ) -> TokenisedSample | None:
        input_ids = np.asarray(ids, dtype=np.int32)
        supervised = build_mask(np.asarray(offsets, dtype=np.int64).reshape(-1, 2), text.spans)
        if not text.is_rendered:
            if text.spans[0][0] == 0:  # the whole text, with tokens that stand for no character of it
                supervised[1:] = True
            input_ids, supervised = self._with_ends(input_ids, supervised)
        limit = self.options.max_seq_length
        is_long = len(input_ids) > limit
        if is_long and self.options.long_sample_policy is not LongSamplePolicy.TRUNCATE:
            self._drop(text.row, RowCode.SAMPLE_TOO_LONG, f"{len(input_ids)} tokens, maxSeqLength is {limit}")
            return None
        if not supervised[:limit].any():
            where = f"the first {limit} of {len(input_ids)} tokens (maxSeqLength)" if is_long else "its tokens"
            self._drop(text.row, RowCode.NO_SUPERVISED_TOKENS, f"none of {where} is supervised")
            return None
        self._check_range(text.row, input_ids[:limit])
        self.account.num_trained += 1
        self.account.num_truncated += is_long
        return TokenisedSample(text.row, input_ids[:limit], supervised[:limit])

    def _with_ends(
        self, input_ids: NDArray[np.int32], supervised: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """End the text with the end token, supervised, unless it is there; take one of two bos tokens at its start."""
        if len(input_ids) > 1 and input_ids[0] == input_ids[1] == self.tokenizer.bos_id:
            input_ids, supervised = input_ids[1:], supervised[1:]
            supervised[0] = False
        if len(input_ids) and input_ids[-1] == self.tokenizer.eos_id:
            supervised[-1] = len(input_ids) > 1
            return input_ids, supervised
        eos = np.asarray([self.tokenizer.eos_id], dtype=np.int32)
        return np.append(input_ids, eos), np.append(supervised, len(input_ids) > 0)

    def _check_range(self, row: int, input_ids: NDArray[np.int32]) -> None:
        largest = int(input_ids.max())
        if largest >= self.embedding_rows:
            token = self.tokenizer.backend.id_to_token(largest) or ""
            self.account.out_of_range.append(OutOfRange(row, token, largest))

    def _drop(self, row: int, code: RowCode, message: str) -> None:
        self.account.dropped.append(DroppedRow(row, code.value, message))
