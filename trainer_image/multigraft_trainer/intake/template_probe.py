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

Message = dict[str, Any]

# Letters and digits only, so that trimming, escaping and quoting leave them alone.
_SYSTEM, _USER, _ASSISTANT = (f"multigraft{part}9d41c7" for part in ("system", "user", "assistant"))


class ProbedTemplate:
    """A renderer whose template has shown that it renders what user and assistant say.

    Messages have text as content here; for a template that wants a list of parts they are wrapped on the way.
    """

    def __init__(self, template: ChatTemplate, *, now: datetime) -> None:
        """Start the renderer and probe.

        Raises:
            RefusalError: `InvalidChatTemplate` if the template renders no plain conversation or drops its contents.
        """
        self._origin = template.origin
        self._as_parts = False
        self.generation_prompt = ""
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
        turns = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _ASSISTANT}]
        what = ""
        for self._as_parts in (False, True):
            for messages in (turns, [{"role": "system", "content": _SYSTEM}, *turns]):
                asked = len(messages) - 1
                variants = [Variant(), Variant(upto=asked), Variant(upto=asked, generation_prompt=True)]
                [[whole, question, prompted]] = self.render([RenderRequest(messages, None, variants)])
                if isinstance(whole, TemplateFault):
                    what = what or f"cannot render a plain conversation: {whole.message}"
                elif isinstance(whole, Rendering) and _USER in whole.text and _ASSISTANT in whole.text:
                    self.generation_prompt = _generation_prompt(question, prompted)
                    return
                else:
                    what = what or "does not render what user and assistant say"
        raise RefusalError(Reason.INVALID_CHAT_TEMPLATE, f"chat template {self._origin}: {what}")


def _generation_prompt(question: Result, prompted: Result) -> str:
    if not isinstance(question, Rendering) or not isinstance(prompted, Rendering):
        return ""
    return prompted.text.removeprefix(question.text) if prompted.text.startswith(question.text) else ""


def _in_parts(request: RenderRequest) -> RenderRequest:
    variants = [v if v.messages is None else replace(v, messages=_wrap(v.messages)) for v in request.variants]
    return RenderRequest(_wrap(request.messages), request.tools, variants)


def _wrap(messages: list[Message]) -> list[Message]:
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]
