"""The three formats: what a row must hold, and what is to be trained of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from multigraft.api.adapter_job import DatasetFormat
from multigraft_trainer.intake.codes import RowCode, RowError
from multigraft_trainer.intake.limits import MAX_MESSAGES, MAX_RENDERED_CHARS
from multigraft_trainer.intake.messages import Turn, check_messages
from multigraft_trainer.intake.tools import check_tools

_MESSAGE_KEYS = ("messages", "conversations")


@dataclass(frozen=True)
class Conversation:
    """Turns that the chat template renders; at least one is supervised."""

    turns: tuple[Turn, ...]
    tools: list[dict[str, Any]] | None

    @property
    def supervised_turns(self) -> tuple[int, ...]:
        return tuple(index for index, turn in enumerate(self.turns) if turn.supervised)


@dataclass(frozen=True)
class PlainText:
    """Text that is tokenised as it is; characters from `supervised_from` on are supervised."""

    text: str
    supervised_from: int


def parse_row(row: dict[str, Any], dataset_format: DatasetFormat) -> Conversation | PlainText:
    """Read a row in the job's format; other columns are not read.

    Raises:
        RowError: If the row does not hold what the format needs.
    """
    match dataset_format:
        case DatasetFormat.CONVERSATIONAL:
            return _parse_conversation(row)
        case DatasetFormat.PROMPT_COMPLETION:
            return _parse_prompt_completion(row)
        case DatasetFormat.TEXT:
            return _parse_text(row)


def _parse_conversation(row: dict[str, Any]) -> Conversation:
    keys = [key for key in _MESSAGE_KEYS if key in row]
    if not keys:
        raise RowError(RowCode.MISSING_MESSAGES, f"`messages` is missing{_hint(row, 'Conversational')}")
    if len(keys) == 2:
        raise RowError(RowCode.AMBIGUOUS_ROW, "both `messages` and `conversations` are given")
    conversation = Conversation(check_messages(row[keys[0]], keys[0]), check_tools(row.get("tools")))
    _check_size(conversation)
    if not conversation.supervised_turns:
        raise RowError(
            RowCode.NO_ASSISTANT_TURN, f"no turn of `{keys[0]}` has the role assistant (and a weight above 0)"
        )
    return conversation


def _check_size(conversation: Conversation) -> None:
    if len(conversation.turns) > MAX_MESSAGES:
        text = f"{len(conversation.turns)} messages; at most {MAX_MESSAGES} are trained in one row"
        raise RowError(RowCode.TOO_MANY_MESSAGES, text)
    num_chars = sum(len(turn.content) for turn in conversation.turns)
    if 2 * num_chars * len(conversation.supervised_turns) > MAX_RENDERED_CHARS:
        text = f"{num_chars} characters are too many for {len(conversation.supervised_turns)} answers in one row"
        raise RowError(RowCode.ROW_TOO_LONG, text)


def _parse_prompt_completion(row: dict[str, Any]) -> Conversation | PlainText:
    prompt, completion = row.get("prompt"), row.get("completion")
    if prompt is None:
        raise RowError(RowCode.MISSING_PROMPT, f"`prompt` is missing or null{_hint(row, 'PromptCompletion')}")
    if completion is None:
        raise RowError(RowCode.MISSING_COMPLETION, "`completion` is missing or null")
    if isinstance(prompt, str) and isinstance(completion, str):
        return PlainText(prompt + completion, supervised_from=len(prompt))
    if not isinstance(prompt, str | list):
        raise RowError(RowCode.INVALID_PROMPT, "`prompt` is neither text nor a list of messages")
    if not isinstance(completion, str | list) or isinstance(prompt, str) != isinstance(completion, str):
        raise RowError(
            RowCode.INVALID_COMPLETION, "`prompt` and `completion` must both be text or both lists of messages"
        )
    asked = tuple(Turn(turn.message, supervised=False) for turn in check_messages(prompt, "prompt"))
    conversation = Conversation(asked + check_messages(completion, "completion"), check_tools(row.get("tools")))
    _check_size(conversation)
    if not conversation.supervised_turns:
        raise RowError(
            RowCode.NO_ASSISTANT_TURN, "no turn of `completion` has the role assistant (and a weight above 0)"
        )
    return conversation


def _parse_text(row: dict[str, Any]) -> PlainText:
    text = row.get("text")
    if text is None:
        raise RowError(RowCode.MISSING_TEXT, f"`text` is missing or null{_hint(row, 'Text')}")
    if not isinstance(text, str):
        raise RowError(RowCode.INVALID_TEXT, "`text` is not text")
    if not text:
        raise RowError(RowCode.EMPTY_TEXT, "`text` is empty")
    return PlainText(text, supervised_from=0)


def _hint(row: dict[str, Any], asked: str) -> str:
    """Name the format that the row's columns look like, if it is another one."""
    looks = {
        "Conversational": any(key in row for key in _MESSAGE_KEYS),
        "PromptCompletion": "prompt" in row and "completion" in row,
        "Text": "text" in row,
    }
    found = [name for name, fits in looks.items() if fits and name != asked]
    return f"; the row looks like format {found[0]}, the job says {asked}" if found else ""
