"""Spans of a rendered conversation that the assistant produces: from the generation prompt to the end of its turn.

Three ways; the first that holds for a turn is taken, and each checks itself:

1. The template's own {% generation %} blocks.
2. Prefixes: the conversation up to the turn with the generation prompt, and up to and with the turn, must both be
   prefixes of the whole rendering. True of most templates.
3. Anchors (`anchors.py`), for templates that render a turn differently once others follow it.

Where none holds the template is refused: a guessed mask would train on the wrong tokens. Nothing here looks at token
ids, so that pad, eos and end-of-turn tokens may coincide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from multigraft_trainer.intake.anchors import find_anchored_span
from multigraft_trainer.intake.codes import RowCode, RowError
from multigraft_trainer.intake.formats import Conversation
from multigraft_trainer.intake.rendered_check import check_rendered
from multigraft_trainer.intake.template import Prefix, Rendering, RenderRequest, Result, TemplateFault, Variant
from multigraft_trainer.intake.template_probe import ProbedTemplate

Span = tuple[int, int]


class SpansNotFoundError(ValueError):
    """The spans of the assistant's turns cannot be found reliably; the message says why."""


@dataclass(frozen=True)
class RenderedConversation:
    """The text of a conversation and the [start, end) that are supervised: in order, disjoint, not empty."""

    text: str
    spans: tuple[Span, ...]


def render_conversations(
    conversations: Sequence[Conversation], template: ProbedTemplate, *, end_texts: Sequence[str]
) -> list[RenderedConversation | RowError | SpansNotFoundError]:
    """Render conversations and find what is supervised in them.

    Args:
        end_texts: Texts of the special tokens, which may end a turn; white space after such an end is not supervised.

    Returns:
        Per conversation what was found, or a `RowError` (`TemplateRefused`, `NotRendered`), or a `SpansNotFoundError`
        if no way holds.

    Raises:
        RefusalError: `InvalidChatTemplate`, from the sandbox.
    """
    results = template.render([_build_request(conversation, template) for conversation in conversations])
    outcomes: list[RenderedConversation | RowError | SpansNotFoundError] = []
    for conversation, (whole, *prefixes) in zip(conversations, results, strict=True):
        try:
            outcomes.append(_find_spans(conversation, whole, prefixes, template, end_texts))
        except (RowError, SpansNotFoundError) as error:
            outcomes.append(error)
    return outcomes


def _build_request(conversation: Conversation, template: ProbedTemplate) -> RenderRequest:
    marked = template.has_marks(conversation.tools)
    variants = [Variant(marks=marked)]
    if not marked:
        for turn in conversation.supervised_turns:
            variants.append(Variant(upto=turn, generation_prompt=True, only_prefix=True))
            variants.append(Variant(upto=turn + 1, only_prefix=True))
    return RenderRequest([turn.message for turn in conversation.turns], conversation.tools, variants)


def _find_spans(
    conversation: Conversation,
    whole: Result,
    prefixes: Sequence[Result],
    template: ProbedTemplate,
    end_texts: Sequence[str],
) -> RenderedConversation:
    if not isinstance(whole, Rendering):
        raise RowError(RowCode.TEMPLATE_REFUSED, whole.message if isinstance(whole, TemplateFault) else "")
    if template.has_marks(conversation.tools):
        spans = _take_marked(conversation, whole)
    else:
        spans = []
        for turn, before, after in zip(conversation.supervised_turns, prefixes[::2], prefixes[1::2], strict=True):
            span = _span_between(before, after)
            span = span or find_anchored_span(conversation, turn, whole.text, template, end_texts)
            if span is None:
                raise SpansNotFoundError(f"the template gives no way to find turn {turn + 1}")
            spans.append(_without_trailing_space(whole.text, span, end_texts))
    if any(first[1] > second[0] for first, second in pairwise(spans)):
        raise SpansNotFoundError("turns overlap in the rendered text")
    check_rendered(conversation, whole.text, spans)
    return RenderedConversation(whole.text, tuple((start, end) for start, end in spans if start < end))


def _span_between(before: Result, after: Result) -> Span | None:
    start = before.num_chars if isinstance(before, Prefix) else None
    end = after.num_chars if isinstance(after, Prefix) else None
    return None if start is None or end is None or start > end else (start, end)


def _take_marked(conversation: Conversation, whole: Rendering) -> list[Span]:
    """Take the spans of the supervised turns from those that the template marks.

    A template may mark several pieces of a turn; then only a conversation whose every assistant turn is supervised
    says which pieces count.
    """
    if whole.spans is None:
        raise SpansNotFoundError("its {% generation %} blocks cannot be told apart in the rendered text")
    answers = [index for index, turn in enumerate(conversation.turns) if turn.role == "assistant"]
    if len(whole.spans) == len(answers):
        return [span for span, turn in zip(whole.spans, answers, strict=True) if conversation.turns[turn].supervised]
    if len(whole.spans) < len(answers) or len(answers) != len(conversation.supervised_turns):
        raise SpansNotFoundError(f"it marks {len(whole.spans)} {{% generation %}} blocks for {len(answers)} turns")
    return list(whole.spans)


def _without_trailing_space(text: str, span: Span, end_texts: Sequence[str]) -> Span:
    """Cut the white space that separates a turn's end token from the next turn; the assistant never produces it."""
    start, end = span
    piece = text[start:end].rstrip()
    return (start, start + len(piece)) if piece.endswith(tuple(end_texts)) else span
