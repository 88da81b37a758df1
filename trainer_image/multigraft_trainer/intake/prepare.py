"""From rows to the texts that are tokenised: parse, render, and book what cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake.account import Account
from multigraft_trainer.intake.batching import iterate_batches
from multigraft_trainer.intake.codes import RowError
from multigraft_trainer.intake.formats import Conversation, PlainText, parse_row
from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.row import Row, dropped
from multigraft_trainer.intake.samples import DroppedRow
from multigraft_trainer.intake.spans import SpansNotFoundError, check_template, render_conversations
from multigraft_trainer.intake.template_probe import ProbedTemplate
from multigraft_trainer.intake.tokenise import PreparedText
from multigraft_trainer.intake.tokenizer import IntakeTokenizer

_BATCH_ROWS = 128
_BATCH_CHARS = 2**20

Parsed = tuple[int, Conversation | PlainText]  # row number, content


class Preparation:
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
        """Give the text of every row that can be used; the others go to the account.

        Raises:
            RefusalError: `InvalidChatTemplate`; `BaseModelInvalid` if texts need an end token that the tokenizer lacks.
        """
        batches = iterate_batches(self._parse(rows), max_items=_BATCH_ROWS, max_size=_BATCH_CHARS, size=_count_chars)
        for batch in batches:
            yield from self._end_plain([(row, item) for row, item in batch if isinstance(item, PlainText)])
            yield from self._render([(row, item) for row, item in batch if isinstance(item, Conversation)])

    def _parse(self, rows: Iterable[Row | DroppedRow]) -> Iterator[Parsed]:
        for row in rows:
            if isinstance(row, DroppedRow):
                self._account.dropped.append(row)
                continue
            try:
                content = parse_row(row.value, self._options.format)
            except RowError as error:
                self._account.dropped.append(dropped(row.number, error))
                continue
            yield row.number, content

    def _end_plain(self, texts: Sequence[tuple[int, PlainText]]) -> Iterator[PreparedText]:
        if texts and self._tokenizer.eos_id is None:
            text = f"the tokenizer has no eos token, which the format {self._options.format} needs to end a text"
            raise RefusalError(Reason.BASE_MODEL_INVALID, text)
        for number, content in texts:
            spans = ((content.supervised_from, len(content.text)),)
            yield PreparedText(number, content.text, spans, is_rendered=False)

    def _render(self, texts: Sequence[tuple[int, Conversation]]) -> Iterator[PreparedText]:
        if not texts:
            return
        template = self._start_template()
        outcomes = render_conversations([conversation for _, conversation in texts], template)
        for (number, _), outcome in zip(texts, outcomes, strict=True):
            if isinstance(outcome, SpansNotFoundError):
                raise _refuse_template(template, outcome, f" in dataset {self._account.name}, row {number},")
            if isinstance(outcome, RowError):
                self._account.dropped.append(dropped(number, outcome))
            else:
                yield PreparedText(number, outcome.text, outcome.spans, is_rendered=True)

    def _start_template(self) -> ProbedTemplate:
        if self._template is None:
            if self._tokenizer.template is None:
                text = "the base model has no chat template, which conversations need (chat_template.jinja)"
                raise RefusalError(Reason.INVALID_CHAT_TEMPLATE, text)
            self._template = ProbedTemplate(self._tokenizer.template, now=self._options.render_date)
            try:
                check_template(self._template)
            except SpansNotFoundError as error:
                raise _refuse_template(self._template, error, "") from None
        return self._template


def _refuse_template(template: ProbedTemplate, error: SpansNotFoundError, where: str) -> RefusalError:
    return RefusalError(
        Reason.INVALID_CHAT_TEMPLATE,
        f"chat template {template.origin}: what the assistant says{where} cannot be told from the rest: {error}; put "
        "{% generation %} blocks in the template",
    )


def _count_chars(item: Parsed) -> int:
    _, content = item
    return len(content.text) if isinstance(content, PlainText) else sum(len(turn.content) for turn in content.turns)
