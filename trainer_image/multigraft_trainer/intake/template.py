"""Chat templates, rendered in a child process with limits on time, memory and output."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake.limits import (
    MAX_RENDER_CHARS,
    MAX_RENDER_CPU_SECONDS,
    MAX_RENDER_MEMORY_BYTES,
    MAX_RENDER_WALL_SECONDS,
    MAX_TEMPLATE_BYTES,
)

_WORKER = Path(__file__).with_name("template_worker.py")
# A text of MAX_RENDER_CHARS as JSON, every character escaped.
_MAX_ANSWER_BYTES = 6 * MAX_RENDER_CHARS + 2**20
# What a child needs to start; everything else (credentials above all) stays here.
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "SYSTEMROOT")


@dataclass(frozen=True)
class ChatTemplate:
    """The templates of a model folder, by name: `default` and, where there is one, `tool_use`."""

    origin: str  # file it came from, for messages
    sources: dict[str, str]
    variables: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token, ... as transformers passes them
    end_texts: tuple[str, ...] = ()  # of all special tokens, which may end a turn; longest first

    def pick(self, tools: Sequence[object] | None) -> str:
        """Give the name of the template that transformers uses with or without tools."""
        return "tool_use" if tools is not None and "tool_use" in self.sources else "default"


@dataclass(frozen=True)
class Variant:
    """One way to render a conversation."""

    upto: int | None = None  # messages before this index only
    generation_prompt: bool = False
    marks: bool = False  # find the spans of {% generation %} too
    strip: str = ""  # taken from the end of the text
    only_prefix: bool = False  # give a `Prefix` of the request's first variant in place of the text
    messages: list[dict[str, Any]] | None = None  # in place of the conversation's own


@dataclass(frozen=True)
class RenderRequest:
    """A conversation, and the ways in which it is to be rendered."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    variants: Sequence[Variant]


@dataclass(frozen=True)
class Rendering:
    """A rendered text; `spans` are [start, end) of its {% generation %} blocks, None if they could not be found."""

    text: str
    spans: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class Prefix:
    """How much of the request's first text another one is; None if that does not begin with it."""

    num_chars: int | None


@dataclass(frozen=True)
class TemplateFault:
    """The template cannot render this conversation."""

    message: str


Result = Rendering | Prefix | TemplateFault


class TemplateRenderer:
    """Renders conversations with one model folder's templates. Not for use by several threads at once."""

    def __init__(self, template: ChatTemplate, *, now: datetime) -> None:
        """Start the child and compile.

        Raises:
            RefusalError: `InvalidChatTemplate` if a template is too long, is no template or takes too long to compile.
        """
        self._template = template
        for name, source in template.sources.items():
            if len(source.encode(errors="replace")) > MAX_TEMPLATE_BYTES:
                raise self._refuse(f"{name}: is longer than {MAX_TEMPLATE_BYTES} bytes")
        self._buffer = bytearray()
        self._child = subprocess.Popen(  # noqa: S603 (our own script, no shell)
            [sys.executable, "-I", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={key: os.environ[key] for key in _KEPT_VARIABLES if key in os.environ} | {"PYTHONHASHSEED": "0"},
        )
        self._poll = select.poll()
        if self._child.stdout is not None:
            self._poll.register(self._child.stdout, select.POLLIN)
        limits = {
            "cpu_seconds": MAX_RENDER_CPU_SECONDS,
            "memory_bytes": MAX_RENDER_MEMORY_BYTES,
            "chars": MAX_RENDER_CHARS,
        }
        setup = {
            "templates": template.sources,
            "variables": template.variables,
            "now": now.isoformat(),
            "limits": limits,
        }
        try:
            self._send(setup)
            self._marked = self._read_setup(self._receive())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._child.wait()

    def has_marks(self, tools: Sequence[object] | None) -> bool:
        """Tell whether the template marks what the assistant generates with {% generation %}."""
        return self._marked[self._template.pick(tools)]

    def render(self, requests: Sequence[RenderRequest]) -> list[list[Result]]:
        """Render conversations, each in each of its ways; many at once save waiting for the child.

        Raises:
            RefusalError: `InvalidChatTemplate` if the template breaks the sandbox's rules or a limit; the child ends.
        """
        self._send([self._build_message(request) for request in requests])
        return [[self._read_result(self._receive()) for _ in request.variants] for request in requests]

    def _build_message(self, request: RenderRequest) -> dict[str, Any]:
        return {
            "template": self._template.pick(request.tools),
            "messages": request.messages,
            "tools": request.tools,
            "variants": [
                {
                    "upto": variant.upto,
                    "prompt": variant.generation_prompt,
                    "marks": variant.marks,
                    "strip": variant.strip,
                    "prefix": variant.only_prefix,
                    "messages": variant.messages,
                }
                for variant in request.variants
            ],
        }

    def _read_result(self, answer: dict[str, Any]) -> Result:
        match answer.get("fault"):
            case None if "prefix" in answer:
                return Prefix(answer["prefix"])
            case None:
                spans = answer.get("spans")
                return Rendering(answer["text"], None if spans is None else tuple((start, end) for start, end in spans))
            case "raised":
                # the template's own words are shown only if they are literally in it: they may quote the row
                detail = answer["detail"]
                literal = any(detail in source for source in self._template.sources.values())
                words = f": {detail[:80]!a}" if detail and literal else ""
                return TemplateFault(f"the chat template refuses the conversation{words}")
            case "data":
                return TemplateFault(f"the chat template fails on the conversation ({answer['detail']})")
            case _:
                self.close()
                raise self._refuse(_describe(answer))

    def _read_setup(self, answer: dict[str, Any]) -> dict[str, bool]:
        if "fault" in answer:
            raise self._refuse(_describe(answer))
        marked: dict[str, bool] = answer["marked"]
        return marked

    def _refuse(self, what: str) -> RefusalError:
        return RefusalError(Reason.INVALID_CHAT_TEMPLATE, f"chat template {self._template.origin}: {what}")

    def _send(self, message: object) -> None:
        pipe = self._child.stdin
        if pipe is None or pipe.closed:
            raise self._refuse("was stopped before")
        try:
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()
        except OSError:
            self.close()
            raise self._refuse("could not be rendered within its limits of time and memory") from None

    def _receive(self) -> dict[str, Any]:
        """Read one answer line, or end the child and refuse the template when none comes in time."""
        deadline = time.monotonic() + MAX_RENDER_WALL_SECONDS
        pipe = self._child.stdout
        if pipe is None or pipe.closed:
            raise self._refuse("was stopped before")
        scanned = 0
        while (end := self._buffer.find(b"\n", scanned)) < 0:
            scanned = len(self._buffer)
            ready = self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            chunk = os.read(pipe.fileno(), 2**20) if ready else b""
            self._buffer += chunk
            if not chunk or len(self._buffer) > _MAX_ANSWER_BYTES:
                self.close()
                raise self._refuse("could not be rendered within its limits of time, memory and output")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        answer: dict[str, Any] = json.loads(line)
        return answer


def _describe(answer: dict[str, Any]) -> str:
    match answer["fault"]:
        case "syntax":
            return f"is not a Jinja template: error in {answer['detail']}"
        case "unsafe":
            return "reaches for something that the sandbox forbids"
        case "limit":
            return "goes beyond a limit (memory, output, depth, or a range of more than 100000)"
        case _:
            return "cannot be compiled"
