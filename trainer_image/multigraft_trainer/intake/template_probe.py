"""What a chat template can do, found out on a made-up conversation before any row is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake.template import (
    ChatTemplate,
    Rendering,
    RenderRequest,
    Result,
    TemplateFault,
    TemplateRenderer,
    Variant,
)
from multigraft_trainer.intake.trailing_prompt import find_trailing_prompt

Message = dict[str, Any]

# Letters and digits only, so that trimming, escaping and quoting leave them alone.
SYSTEM, QUESTION, ANSWER, REASONING = (f"multigraft{part}9d41c7" for part in ("system", "asks", "answers", "thinks"))


class ProbedTemplate:
    """A renderer whose template has shown that it renders what user and assistant say.

    Messages have text as content here; for a template that wants a list of parts they are wrapped on the way.
    """

    def __init__(self, template: ChatTemplate, *, now: datetime) -> None:
        """Start the renderer and probe.

        Raises:
            RefusalError: `InvalidChatTemplate` if the template renders no plain conversation or drops its contents.
        """
        self.origin = template.origin
        self.end_texts = template.end_texts
        self.generation_prompt = ""
        self.trailing_prompt = ""  # what ends every text, though no generation prompt was asked for
        self.shows_reasoning = False
        self._as_parts = False
        self._renderer = TemplateRenderer(template, now=now)
        try:
            self._probe()
        except BaseException:
            self._renderer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the renderer."""
        self._renderer.close()

    def has_marks(self, tools: Sequence[object] | None) -> bool:
        """Tell whether the template has {% generation %} blocks."""
        return self._renderer.has_marks(tools)

    def render(self, requests: Sequence[RenderRequest]) -> list[list[Result]]:
        """Render as `TemplateRenderer.render`."""
        return self._renderer.render([_in_parts(request) for request in requests] if self._as_parts else requests)

    def _probe(self) -> None:
        what = ""
        for self._as_parts in (False, True):
            for start in ([], [{"role": "system", "content": SYSTEM}]):
                [[whole, *more]] = self.render([_build_probe(start)])
                if isinstance(whole, TemplateFault):
                    what = what or f"cannot render a plain conversation: {whole.message}"
                elif isinstance(whole, Rendering) and QUESTION in whole.text and ANSWER in whole.text:
                    self._learn(whole.text, [item.text if isinstance(item, Rendering) else None for item in more])
                    return
                else:
                    what = what or "does not render what user and assistant say"
        raise RefusalError(Reason.INVALID_CHAT_TEMPLATE, f"chat template {self.origin}: {what}")

    def _learn(self, answered: str, texts: list[str | None]) -> None:
        question, prompted, followed, reasoned = texts
        self.shows_reasoning = reasoned is not None and REASONING in reasoned
        if question is None or prompted is None:
            return
        if followed is not None:
            self.trailing_prompt = find_trailing_prompt(
                question=question,
                prompted=prompted,
                answered=answered,
                followed=followed,
                answer=ANSWER,
                end_texts=self.end_texts,
            )
        question = question.removesuffix(self.trailing_prompt)
        self.generation_prompt = prompted.removeprefix(question) if prompted.startswith(question) else ""


def _build_probe(start: list[Message]) -> RenderRequest:
    asked = [*start, {"role": "user", "content": QUESTION}]
    answered = [*asked, {"role": "assistant", "content": ANSWER}]
    followed = [*answered, {"role": "user", "content": "next"}, {"role": "assistant", "content": "last"}]
    reasoned = [*asked, {"role": "assistant", "content": ANSWER, "reasoning_content": REASONING}]
    variants = [
        Variant(),
        Variant(upto=len(asked)),
        Variant(upto=len(asked), generation_prompt=True),
        Variant(messages=followed),
        Variant(messages=reasoned),
    ]
    return RenderRequest(answered, None, variants)


def _in_parts(request: RenderRequest) -> RenderRequest:
    variants = [v if v.messages is None else replace(v, messages=_wrap(v.messages)) for v in request.variants]
    return RenderRequest(_wrap(request.messages), request.tools, variants)


def _wrap(messages: list[Message]) -> list[Message]:
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]
