"""Child process that renders chat templates: run as a script, without the parent's environment, memory or time.

A template is a program from a model folder. Jinja's sandbox keeps it from Python's internals; the process bounds what
the sandbox cannot: endless loops, exponential strings, huge powers. Started by `template.TemplateRenderer`.

One JSON value per line. In: first {"templates", "variables", "now", "limits"}, then lists of requests
{"template", "messages", "tools", "variants": [{"upto", "prompt", "strip", "marks", "prefix", "messages"}]}. Out: one
line for the set-up and one per variant: {"text", "spans"}; {"prefix"} where only the length was asked of a text that
begins the first variant's (null if it does not); or {"fault", "detail"}. A list is read whole before it
is answered, so that the two sides never wait for each other's pipe.

Same environment as transformers' `apply_chat_template` (trim_blocks, lstrip_blocks, loop controls, tojson,
raise_exception, strftime_now, {% generation %}); written from its documented behaviour.
"""

from __future__ import annotations

import importlib
import json
import random
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# What jinja2 imports on first use, when no file can be opened any more.
for _module in ("jinja2.constants", "jinja2.debug", "pprint", "textwrap"):
    importlib.import_module(_module)

FLUSH_SECONDS = 0.5  # answers are sent in one go, but the parent sees that there is progress
FIRST_PRIVATE_USE = 0xE000  # Unicode private use area, 6400 characters: marks are two that the text does not hold


class RaisedByTemplateError(jinja2.TemplateError):
    """The template called raise_exception."""


class Generation(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %}: what the assistant generates, put between marks while marks are set."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as a plain set)
    marks: tuple[str, str] | None = None
    count = 0

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        Generation.count += 1
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        text = caller()
        return f"{Generation.marks[0]}{text}{Generation.marks[1]}" if Generation.marks else text


def build_environment(now: datetime) -> ImmutableSandboxedEnvironment:
    """Build the sandbox; `now` is what strftime_now sees, so that a dataset does not change with the day."""

    def raise_exception(message: object) -> NoReturn:
        raise RaisedByTemplateError(str(message))

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: now.strftime(form)
    return environment


def find_spans(marked: str, marks: tuple[str, str]) -> tuple[str, list[tuple[int, int]]]:
    """Take the marks out of a text; give it and the [start, end) that lay between outermost pairs."""
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    depth = length = start = 0
    for piece in re.split(f"([{''.join(marks)}])", marked):
        if piece == marks[0]:
            start = length if depth == 0 else start
            depth += 1
        elif piece == marks[1]:
            depth -= 1
            if depth == 0:
                spans.append((start, length))
        else:
            pieces.append(piece)
            length += len(piece)
    return "".join(pieces), spans


class Renderer:
    """Compiled templates of one model folder."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._limits = setup["limits"]
        self._variables = setup["variables"]
        self._whole = ""  # the last text that was asked for in full
        self._templates: dict[str, jinja2.Template] = {}
        self.marked: dict[str, bool] = {}
        environment = build_environment(datetime.fromisoformat(setup["now"]))
        for name, source in setup["templates"].items():
            Generation.count = 0
            self._templates[name] = environment.from_string(source)
            self.marked[name] = Generation.count > 0

    def render(self, request: dict[str, Any], variant: dict[str, Any]) -> dict[str, Any]:
        """Render one variant of a conversation."""
        messages = variant.get("messages") or request["messages"]
        upto = variant.get("upto")
        values = {
            **self._variables,
            "messages": messages if upto is None else messages[:upto],
            "tools": request["tools"],
            "documents": None,
            "add_generation_prompt": bool(variant.get("prompt")),
        }
        template = self._templates[request["template"]]
        text = self._run(template, values).removesuffix(variant.get("strip") or "")
        if variant.get("prefix"):
            return {"prefix": len(text) if self._whole.startswith(text) else None}
        self._whole = text
        if not variant.get("marks"):
            return {"text": text}
        free = [mark for mark in map(chr, range(FIRST_PRIVATE_USE, FIRST_PRIVATE_USE + 6400)) if mark not in text][:2]
        marks = (free[0], free[1])
        Generation.marks = marks
        try:
            unmarked, spans = find_spans(self._run(template, values), marks)
        finally:
            Generation.marks = None
        return {"text": text, "spans": spans if unmarked == text else None}

    def _run(self, template: jinja2.Template, values: dict[str, Any]) -> str:
        random.seed(0)  # the `random` filter must not change a dataset from run to run
        pieces: list[str] = []
        length = 0
        for piece in template.generate(**values):
            length += len(piece)
            if length > self._limits["chars"]:
                raise MemoryError
            pieces.append(piece)
        return "".join(pieces)


def describe_fault(error: BaseException) -> dict[str, str]:
    """Name the kind of a fault; of its text only what the template itself raised is passed on."""
    if isinstance(error, RaisedByTemplateError):
        return {"fault": "raised", "detail": error.message or ""}
    if isinstance(error, jinja2.TemplateSyntaxError):
        return {"fault": "syntax", "detail": f"line {error.lineno}"}
    if isinstance(error, SecurityError):
        return {"fault": "unsafe", "detail": ""}
    if isinstance(error, OverflowError | MemoryError | RecursionError):
        return {"fault": "limit", "detail": ""}
    return {"fault": "data", "detail": type(error).__name__}


def limit_cpu(seconds: int) -> None:
    """Let the kernel end this process when it has used so many more CPU seconds, wherever it is then."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime) + seconds + 1
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def lower_limit(kind: int, value: int) -> None:
    """Lower a limit of this process for good; one that is lower already stays."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def close_process() -> None:
    """Let this process open and write no file from here on: a second wall behind the sandbox."""
    lower_limit(resource.RLIMIT_FSIZE, 0)
    lower_limit(resource.RLIMIT_NOFILE, 3)


def answer(requests: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Answer the set-up line and then every request, one answer per variant."""
    setup = json.loads(next(requests))
    lower_limit(resource.RLIMIT_AS, setup["limits"]["memory_bytes"])
    lower_limit(resource.RLIMIT_CORE, 0)
    limit_cpu(setup["limits"]["cpu_seconds"])
    try:
        renderer = Renderer(setup)
    except Exception as error:  # noqa: BLE001 (whatever a foreign template raises is its fault)
        yield describe_fault(error)
        return
    close_process()
    yield {"marked": renderer.marked}
    for line in requests:
        for request in json.loads(line):
            for variant in request["variants"]:
                limit_cpu(setup["limits"]["cpu_seconds"])
                try:
                    result = renderer.render(request, variant)
                except Exception as error:  # noqa: BLE001
                    result = describe_fault(error)
                yield result


def main() -> None:
    flushed = time.monotonic()

    def read_line() -> str:
        sys.stdout.flush()
        return sys.stdin.readline()

    for result in answer(iter(read_line, "")):
        sys.stdout.write(json.dumps(result) + "\n")
        if time.monotonic() - flushed > FLUSH_SECONDS:
            sys.stdout.flush()
            flushed = time.monotonic()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
