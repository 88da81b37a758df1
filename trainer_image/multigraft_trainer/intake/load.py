"""Load a dataset: from a file of rows to tokenised samples, before any model is touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake.account import Account
from multigraft_trainer.intake.cache import build_fingerprint, hash_file, load_cached, save_cached
from multigraft_trainer.intake.codes import RowError
from multigraft_trainer.intake.file_name import shown_name
from multigraft_trainer.intake.formats import Conversation, parse_row
from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.row import Row, dropped
from multigraft_trainer.intake.rows import read_rows, stat_dataset
from multigraft_trainer.intake.spans import SpansNotFoundError, render_conversation
from multigraft_trainer.intake.template_probe import ProbedTemplate
from multigraft_trainer.intake.tokenise import PreparedText, Tokeniser
from multigraft_trainer.intake.tokenizer import IntakeTokenizer
from multigraft_trainer.samples import DroppedRow, TokenisedDataset


def load_dataset(
    path: Path,
    *,
    options: IntakeOptions,
    tokenizer: IntakeTokenizer,
    embedding_rows: int,
    cache_dir: Path | None = None,
) -> TokenisedDataset:
    """Read, check, render, tokenise and mask every row of a file.

    Args:
        path: JSON lines (plain or gzip) or Parquet.
        embedding_rows: Rows of the base model's embedding table; every token id is below it.
        cache_dir: Folder for tokenised datasets, which are used again while content, tokenizer, options and code agree.

    Returns:
        At least one sample, in file order, with the account of all rows.

    Raises:
        RefusalError: `DatasetNotFound`, `InvalidDataset`, `DatasetEmpty`, `InvalidChatTemplate`, `TokenOutOfRange` or
            `BaseModelInvalid` (the format needs an end token that the tokenizer lacks). The message has at most 500
            characters and no text of a row.
    """
    before = stat_dataset(path)
    fingerprint = build_fingerprint(
        content_sha256=hash_file(path),
        tokenizer_sha256=tokenizer.sha256,
        options=options,
        embedding_rows=embedding_rows,
    )
    cached = load_cached(cache_dir, fingerprint) if cache_dir is not None else None
    if cached is not None:
        return cached
    account = Account(shown_name(path))
    tokeniser = Tokeniser(tokenizer, options, embedding_rows, account)
    with _Preparation(options, tokenizer, account) as preparation:
        samples = list(tokeniser.tokenise(preparation.prepare(read_rows(path))))
    after = stat_dataset(path)
    if (after.st_ino, after.st_size, after.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
        raise RefusalError(Reason.INVALID_DATASET, f"dataset {shown_name(path)} was changed while it was read")
    report = account.conclude(options, embedding_rows=embedding_rows)
    samples.sort(key=lambda sample: sample.row)
    dataset = TokenisedDataset(tuple(samples), report, fingerprint)
    if cache_dir is not None:
        save_cached(cache_dir, dataset)
    return dataset


class _Preparation:
    """Turns rows into texts; starts the chat template when the first row needs it."""

    def __init__(self, options: IntakeOptions, tokenizer: IntakeTokenizer, account: Account) -> None:
        self._options, self._tokenizer, self._account = options, tokenizer, account
        self._template: ProbedTemplate | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._template is not None:
            self._template.close()

    def prepare(self, rows: Iterable[Row | DroppedRow]) -> Iterator[PreparedText]:
        """Give the text of every row that can be used; the others go to the account."""
        for row in rows:
            if isinstance(row, DroppedRow):
                self._account.dropped.append(row)
                continue
            try:
                text = self._prepare_row(row)
            except RowError as error:
                self._account.dropped.append(dropped(row.number, error))
                continue
            yield text

    def _prepare_row(self, row: Row) -> PreparedText:
        content = parse_row(row.value, self._options.format)
        if isinstance(content, Conversation):
            return self._render(row.number, content)
        if self._tokenizer.eos_id is None:
            text = f"the tokenizer has no eos token, which the format {self._options.format} needs to end a text"
            raise RefusalError(Reason.BASE_MODEL_INVALID, text)
        spans = ((content.supervised_from, len(content.text)),)
        return PreparedText(row.number, content.text, spans, is_rendered=False)

    def _render(self, number: int, conversation: Conversation) -> PreparedText:
        template = self._tokenizer.template
        if template is None:
            text = "the base model has no chat template, which conversations need (chat_template.jinja)"
            raise RefusalError(Reason.INVALID_CHAT_TEMPLATE, text)
        if self._template is None:
            self._template = ProbedTemplate(template, now=self._options.render_date)
        try:
            rendered = render_conversation(conversation, self._template, end_texts=self._tokenizer.special_texts)
        except SpansNotFoundError as error:
            raise RefusalError(
                Reason.INVALID_CHAT_TEMPLATE,
                f"chat template {template.origin}: what the assistant says in dataset {self._account.name}, "
                f"row {number}, cannot be told from the rest: {error}; put {{% generation %}} blocks in the template",
            ) from None
        return PreparedText(number, rendered.text, rendered.spans, is_rendered=True)
