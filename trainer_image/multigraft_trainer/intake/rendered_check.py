"""Check that a chat template shows what a row says: a template that drops it silently would train on something else."""

from __future__ import annotations

import json

from multigraft_trainer.intake.codes import RowCode, RowError
from multigraft_trainer.intake.formats import Conversation
from multigraft_trainer.intake.messages import Turn
from multigraft_trainer.intake.tools import tool_name

_END_OF_REASONING = "</think>"


def check_rendered(
    conversation: Conversation, text: str, spans: list[tuple[int, int]], *, shows_reasoning: bool
) -> None:
    """Check that tools, questions and supervised answers are in the text, the answers within supervised spans.

    Args:
        spans: Supervised [start, end) of `text`, one per supervised turn, or more where the template marks pieces.
        shows_reasoning: Whether the template renders `reasoning_content` at all; it may cut it from earlier turns.

    Raises:
        RowError: `NotRendered`, naming the turn.
    """
    for index, tool in enumerate(conversation.tools or ()):
        if (tool_name(tool) or "") not in text:
            raise RowError(RowCode.NOT_RENDERED, f"the chat template does not show tools[{index}]")
    answers = [text[start:end] for start, end in spans]
    if len(answers) != len(conversation.supervised_turns):
        answers = ["\n".join(answers)] * len(conversation.supervised_turns)
    for index, answer in zip(conversation.supervised_turns, answers, strict=True):
        _check_answer(conversation.turns[index], answer, index)
    for index, turn in enumerate(conversation.turns):
        if turn.message.get("reasoning_content") and not shows_reasoning:
            raise RowError(RowCode.NOT_RENDERED, f"the chat template shows no reasoning_content (turn {index + 1})")
        if turn.role != "assistant" and not _shows(text, turn.content):
            raise RowError(RowCode.NOT_RENDERED, f"the chat template does not show turn {index + 1} ({turn.role})")


def _check_answer(turn: Turn, answer: str, index: int) -> None:
    # templates of reasoning models cut the reasoning from earlier turns
    content = turn.content.rpartition(_END_OF_REASONING)[2]
    if not _shows(answer, content):
        raise RowError(RowCode.NOT_RENDERED, f"the chat template does not show turn {index + 1} (assistant)")
    for call in turn.message.get("tool_calls", ()):
        if call["function"]["name"] not in answer:
            raise RowError(RowCode.NOT_RENDERED, f"the chat template does not show the tool calls of turn {index + 1}")


def _shows(text: str, content: str) -> bool:
    """Tell whether content is in the text: as it is but for outer white space, or as a JSON string."""
    content = content.strip()
    return content in text or json.dumps(content, ensure_ascii=False)[1:-1] in text
