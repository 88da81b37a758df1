"""Find a turn in a rendered text by changing it and seeing what moves.

Some templates render a turn in one way while it is the last and in another once others follow it (reasoning that is cut
from earlier turns, tools that stand before the last question), so that prefixes do not match. Here one word of the turn
is replaced in the whole conversation: what lies before and after the place that changed is the same in both
renderings, which gives the place exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multigraft_trainer.intake.codes import RowCode, RowError
from multigraft_trainer.intake.formats import Conversation
from multigraft_trainer.intake.template import Rendering, RenderRequest, Result, Variant
from multigraft_trainer.intake.template_probe import ProbedTemplate

Message = dict[str, Any]

# Letters and digits only, so that trimming, escaping and quoting leave it alone.
_ANCHOR = "multigraftanchor5e0b92"


def find_anchored_span(
    conversation: Conversation, turn: int, text: str, template: ProbedTemplate
) -> tuple[int, int] | None:
    """Find [start, end) of what the assistant produces in `turn`; None where that is not certain.

    Args:
        text: The whole conversation as rendered, without a trailing prompt.

    Raises:
        RowError: `NotRendered` if the template does not show what the turn says.
    """
    if _ANCHOR in text:
        return None
    messages = [item.message for item in conversation.turns]
    first, last = _anchor_messages(messages[turn])
    strip = template.trailing_prompt
    variants = [
        Variant(messages=_replace(messages, turn, first), strip=strip),
        Variant(messages=_replace(messages, turn, last), strip=strip),
        Variant(messages=[*messages[:turn], last], strip=strip),
        Variant(upto=turn, strip=strip),
        Variant(upto=turn, generation_prompt=True),
    ]
    if turn:
        earlier = _anchor_messages(messages[turn - 1])[1]
        variants += [
            Variant(messages=_replace(messages, turn - 1, earlier), strip=strip),
            Variant(messages=[*messages[: turn - 1], earlier], strip=strip),
        ]
    [results] = template.render([RenderRequest(messages, conversation.tools, variants)])
    at_first, at_last, alone, question, prompted, *before = results
    if isinstance(at_last, Rendering) and _ANCHOR not in at_last.text:
        raise RowError(RowCode.NOT_RENDERED, f"the chat template does not show all of turn {turn + 1} (assistant)")
    place = _locate(text, at_first)
    last_place = _locate(text, at_last)
    floor = _locate(text, before[0]) if turn else (0, 0)
    if place is None or last_place is None or floor is None:
        return None
    prompt = _difference(question, prompted)
    prompt = template.generation_prompt if prompt is None else prompt
    if prompt:
        start = _find_start(text, place[0], floor[1], prompt, template.end_texts)
    elif turn:
        start = _find_end(text, floor[1], before[1], is_last=False, end_texts=template.end_texts)
    else:
        start = place[0] if messages[0]["content"] else None
    is_last = turn == len(messages) - 1
    end = _find_end(text, last_place[1], alone, is_last=is_last, end_texts=template.end_texts)
    if start is None or end is None or not start <= place[0] <= last_place[1] <= end:
        return None
    return start, end


def _anchor_messages(message: Message) -> tuple[Message, Message]:
    """Give the message with the anchor in place of the first, and of the last, thing that it says.

    A template that renders calls before the content is found out by `_locate`: the places then do not enclose the turn.
    """
    in_content = {**message, "content": _ANCHOR}
    calls = message.get("tool_calls")
    if not calls:
        return in_content, in_content
    named = [_with_name(calls, index) for index in (0, len(calls) - 1)]
    in_first_call, in_last_call = ({**message, "tool_calls": renamed} for renamed in named)
    return (in_content if message["content"] else in_first_call), in_last_call


def _with_name(calls: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    call = calls[index]
    return [*calls[:index], {**call, "function": {**call["function"], "name": _ANCHOR}}, *calls[index + 1 :]]


def _replace(messages: list[Message], index: int, message: Message) -> list[Message]:
    return [*messages[:index], message, *messages[index + 1 :]]


def _locate(text: str, changed: Result) -> tuple[int, int] | None:
    """Give the [start, end) of `text` that the anchor replaced; None if more than that changed."""
    if not isinstance(changed, Rendering) or changed.text.count(_ANCHOR) != 1:
        return None
    head, _, tail = changed.text.partition(_ANCHOR)
    if len(head) + len(tail) > len(text) or not text.startswith(head) or not text.endswith(tail):
        return None
    return len(head), len(text) - len(tail)


def _difference(question: Result, prompted: Result) -> str | None:
    if not isinstance(question, Rendering) or not isinstance(prompted, Rendering):
        return None
    return prompted.text[len(question.text) :] if prompted.text.startswith(question.text) else None


def _find_start(text: str, place: int, floor: int, prompt: str, end_texts: Sequence[str]) -> int | None:
    """Find where the generation prompt ends, between the end of the message before (`floor`) and the content."""
    if floor > place:
        return None
    found = text.find(prompt, floor, place)
    if found >= 0:
        return found + len(prompt)
    # the prompt opens more than the finished turn has (a thinking block): up to where they part, on a special token
    head = text[floor:place]
    for length in range(len(prompt) - 1, 0, -1):
        if prompt[:length].endswith(tuple(end_texts)) and head.endswith(prompt[:length]):
            return place
    return None


def _find_end(text: str, place: int, alone: Result, *, is_last: bool, end_texts: Sequence[str]) -> int | None:
    """Find where the turn ends: as it does when nothing follows it, or else at a special token right there."""
    if is_last:
        return len(text)
    if isinstance(alone, Rendering) and alone.text.count(_ANCHOR) == 1:
        tail = alone.text.partition(_ANCHOR)[2]
        if tail and text.startswith(tail, place):
            return place + len(tail)
        closing = tail.rstrip()
        if closing and text.startswith(closing, place):
            return place + len(closing)
    for end_text in end_texts:
        if text.startswith(end_text, place):
            return place + len(end_text)
    return None
