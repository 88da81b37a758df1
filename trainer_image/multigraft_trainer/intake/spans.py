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
from multigraft_trainer.intake.messages import Turn
from multigraft_trainer.intake.rendered_check import check_rendered
from multigraft_trainer.intake.template import Prefix, Rendering, RenderRequest, Result, TemplateFault, Variant
from multigraft_trainer.intake.template_probe import ANSWER, QUESTION, ProbedTemplate

Span = tuple[int, int]


class SpansNotFoundError(ValueError):
    """The spans of the assistant's turns cannot be found reliably; the message says why."""


@dataclass(frozen=True)
class RenderedConversation:
    """The text of a conversation and the [start, end) that are supervised: in order, disjoint, not empty."""

    text: str
    spans: tuple[Span, ...]


def render_conversations(
    conversations: Sequence[Conversation], template: ProbedTemplate
) -> list[RenderedConversation | RowError | SpansNotFoundError]:
    """Render conversations and find what is supervised in them.

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
            outcomes.append(_find_spans(conversation, whole, prefixes, template))
        except (RowError, SpansNotFoundError) as error:
            outcomes.append(error)
    return outcomes


def check_template(template: ProbedTemplate) -> None:
    """Check on a made-up conversation that what is found is the answers and their ends, and nothing else.

    Raises:
        SpansNotFoundError: If not.
    """
    turns = tuple(
        Turn({"role": role, "content": f"{content}{place}"}, supervised=role == "assistant")
        for place in (1, 2)
        for role, content in (("user", QUESTION), ("assistant", ANSWER))
    )
    [outcome] = render_conversations([Conversation(turns, None)], template)
    if isinstance(outcome, SpansNotFoundError):
        raise outcome
    if isinstance(outcome, RowError) or template.has_marks(None):
        return
    for place, (start, end) in enumerate(outcome.spans, 1):
        head, _, tail = outcome.text[start:end].partition(f"{ANSWER}{place}")
        ends = [(tail.find(text), text) for text in template.end_texts if text in tail]
        if ends:
            position, text = min(ends)
            tail = tail[position + len(text) :]
            for text in template.end_texts:
                tail = tail.replace(text, "")
        if QUESTION in head or QUESTION in tail or (ends and tail.strip()):
            raise SpansNotFoundError("more than the answer lies between its start and its end")


def _build_request(conversation: Conversation, template: ProbedTemplate) -> RenderRequest:
    marked = template.has_marks(conversation.tools)
    variants = [Variant(marks=marked)]
    if not marked:
        for turn in conversation.supervised_turns:
            variants.append(Variant(upto=turn, generation_prompt=True, only_prefix=True))
            variants.append(Variant(upto=turn + 1, strip=template.trailing_prompt, only_prefix=True))
    return RenderRequest([turn.message for turn in conversation.turns], conversation.tools, variants)


def _find_spans(
    conversation: Conversation,
    whole: Result,
    prefixes: Sequence[Result],
    template: ProbedTemplate,
) -> RenderedConversation:
    if not isinstance(whole, Rendering):
        raise RowError(RowCode.TEMPLATE_REFUSED, whole.message if isinstance(whole, TemplateFault) else "")
    if template.has_marks(conversation.tools):
        spans = _take_marked(conversation, whole)
    else:
        spans = []
        text = whole.text.removesuffix(template.trailing_prompt)
        for turn, before, after in zip(conversation.supervised_turns, prefixes[::2], prefixes[1::2], strict=True):
            span = _span_between(before, after)
            span = span or find_anchored_span(conversation, turn, text, template)
            if span is None:
                raise SpansNotFoundError(f"the template gives no way to find turn {turn + 1}")
            spans.append(_without_trailing_space(text, span, template.end_texts))
    if any(first[1] > second[0] for first, second in pairwise(spans)):
        raise SpansNotFoundError("turns overlap in the rendered text")
    check_rendered(conversation, whole.text, spans, shows_reasoning=template.shows_reasoning)
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
    """Cut the white space that separates a turn's end token from the next turn; the assistant never produces it.

    Args:
        end_texts: Texts of the special tokens, which may end a turn.
    """
    start, end = span
    piece = text[start:end].rstrip()
    return (start, start + len(piece)) if piece.endswith(tuple(end_texts)) else span
