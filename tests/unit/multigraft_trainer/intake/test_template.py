from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers.utils import chat_template_utils

from builders import chat_templates
from builders.cases import case_file
from builders.intake import chat, tiny_tokenizer
from builders.tiny_base import CHAT_TEMPLATE, build_tiny_tokenizer
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake import template as template_module
from multigraft_trainer.intake.limits import MAX_TEMPLATE_BYTES
from multigraft_trainer.intake.options import RENDER_DATE
from multigraft_trainer.intake.template import (
    ChatTemplate,
    Prefix,
    Rendering,
    RenderRequest,
    Result,
    TemplateFault,
    TemplateRenderer,
    Variant,
)
from multigraft_trainer.intake.template_probe import ProbedTemplate

MESSAGES = chat("q", "a")["messages"]


def render(source: str, messages: list[dict[str, Any]] | None = None, **more: Any) -> Result:
    template = ChatTemplate("chat_template.jinja", {"default": source}, {"bos_token": "<bos>"})
    with TemplateRenderer(template, now=RENDER_DATE) as renderer:
        [[result]] = renderer.render(
            [RenderRequest(messages or MESSAGES, more.get("tools"), [Variant(upto=more.get("upto"))])]
        )
    return result


def text(source: str, **more: Any) -> str:
    result = render(source, **more)
    assert isinstance(result, Rendering), result
    return result.text


def refusal(source: str) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        render(source)
    error = caught.value
    assert error.reason == Reason.INVALID_CHAT_TEMPLATE
    assert error.message.startswith("chat template chat_template.jinja: ")
    assert len(str(error)) < 300
    for internal in ("<class", "object", "Traceback", "File ", "jinja2", "__mro__"):
        assert internal not in str(error)
    return error


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MAX_RENDER_CPU_SECONDS", 1)
    monkeypatch.setattr(template_module, "MAX_RENDER_MEMORY_BYTES", 512 * 2**20)
    monkeypatch.setattr(template_module, "MAX_RENDER_CHARS", 10**6)


# ---- K06: what a template must not do


def test_K06_the_case_s_template_that_reaches_for_internals_is_refused() -> None:
    source = json.loads(case_file("K06", "tokenizer_config.json").read_text())["chat_template"]
    assert "sandbox" in refusal(source).message


def test_K06_the_case_s_endless_loop_is_stopped() -> None:
    source = json.loads(case_file("K06", "tokenizer_config_loop.json").read_text())["chat_template"]
    assert "limit" in refusal(source).message


def test_K06_a_template_of_5_mb_is_refused_by_size() -> None:
    assert f"longer than {MAX_TEMPLATE_BYTES} bytes" in refusal("x" * 5_000_000).message
    assert text("x" * MAX_TEMPLATE_BYTES) == "x" * MAX_TEMPLATE_BYTES


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''['__class__'].__mro__ }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ lipsum.__globals__['__builtins__'] }}",
        "{{ self._TemplateReference__context.x }}",
        "{% set x = messages.append({}) %}",
        "{% set x = messages[0].update({'content': 'x'}) %}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ namespace.__init__.__globals__.x }}",
    ],
)
def test_K06_reaching_for_internals_or_changing_the_row_is_refused(source: str) -> None:
    assert "sandbox" in refusal(source).message


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", id="silent loops"
        ),
        pytest.param(
            "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}", id="endless output"
        ),
        pytest.param("{{ 9 ** (9 ** 9) }}", id="a huge power"),
        pytest.param("{{ 'x' * 10 ** 10 }}", id="a huge string"),
        pytest.param("{{ '%99999999999d' % 1 }}", id="a huge format width"),
        pytest.param("{{ 'x'.ljust(10 ** 10) }}", id="a huge padding"),
        pytest.param(
            "{% set n = namespace(x='xx') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            id="doubling",
        ),
        pytest.param("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", id="endless recursion"),
        pytest.param("{{ lipsum(n=10**9) }}", id="endless filler"),
        pytest.param(
            "{{ ('a' * 1000 ~ '!') | wordcount }}{% for a in range(10**6) %}{% endfor %}", id="a range too long"
        ),
    ],
)
@pytest.mark.usefixtures("short_limits")
def test_K06_whatever_runs_away_is_stopped(source: str) -> None:
    assert "limit" in refusal(source).message


@pytest.mark.usefixtures("short_limits")
def test_K06_an_endless_loop_is_stopped_in_a_thread_too() -> None:
    caught: list[RefusalError] = []

    def work() -> None:
        try:
            render("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
        except RefusalError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [error.reason for error in caught] == [Reason.INVALID_CHAT_TEMPLATE]


def test_K06_a_child_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MAX_RENDER_WALL_SECONDS", 0.0)
    assert "limits" in refusal("x").message


def test_K06_the_child_has_none_of_the_parent_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "canary")
    template = ChatTemplate("t", {"default": "x"})
    with TemplateRenderer(template, now=RENDER_DATE) as renderer:
        assert b"canary" not in Path(f"/proc/{renderer._child.pid}/environ").read_bytes()
        pid = renderer._child.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("source", ["{% if %}", "{{", "{% generation %}x", "{% include 'x' %}", "{{ 'a' | nofilter }}"])
def test_what_is_no_template_is_refused(source: str) -> None:
    template = ChatTemplate("chat_template.jinja", {"default": source})
    with pytest.raises(RefusalError) as caught:
        ProbedTemplate(template, now=RENDER_DATE)
    assert caught.value.reason == Reason.INVALID_CHAT_TEMPLATE


@pytest.mark.parametrize(
    "source, words",
    [
        ("{{ messages[0].nothing.more }}", "cannot render a plain conversation"),
        ("{{ raise_exception('not for chat') }}", "'not for chat'"),
        ("hello", "does not render what user and assistant say"),
        ("{{ messages[0].content }}", "does not render what user and assistant say"),
    ],
)
def test_a_template_that_renders_no_conversation_is_refused_before_any_row(source: str, words: str) -> None:
    with pytest.raises(RefusalError) as caught:
        ProbedTemplate(ChatTemplate("chat_template.jinja", {"default": source}), now=RENDER_DATE)
    assert words in caught.value.message


def test_a_fault_on_one_conversation_leaves_the_others() -> None:
    source = "{% if messages[0].content == 'bad' %}{{ raise_exception('no ' + messages[0].content) }}{% endif %}ok"
    with TemplateRenderer(ChatTemplate("t", {"default": source}), now=RENDER_DATE) as renderer:
        bad, good = [RenderRequest(chat(word, "a")["messages"], None, [Variant()]) for word in ("bad", "good")]
        [[first], [second]] = renderer.render([bad, good])
    assert first == TemplateFault("the chat template refuses the conversation")
    assert second == Rendering("ok")


def test_many_large_conversations_at_once_do_not_lock_up() -> None:
    with TemplateRenderer(ChatTemplate("t", {"default": "{{ messages[0].content }}"}), now=RENDER_DATE) as renderer:
        requests = [RenderRequest(chat("é" * 200_000, "a")["messages"], None, [Variant(), Variant()]) for _ in range(8)]
        results = renderer.render(requests)
    assert all(result == Rendering("é" * 200_000) for group in results for result in group)


def test_of_a_prefix_only_the_length_is_given() -> None:
    source = "{% for m in messages %}{{ m.content }}{{ '!' if messages | length == 1 }};{% endfor %}"
    variants = [
        Variant(),
        Variant(upto=2, only_prefix=True),
        Variant(upto=0, only_prefix=True),
        Variant(upto=1, only_prefix=True),
    ]
    with TemplateRenderer(ChatTemplate("t", {"default": source}), now=RENDER_DATE) as renderer:
        requests = [RenderRequest(chat(*words)["messages"], None, variants) for words in ("abc", "xyz")]
        assert renderer.render(requests) == [
            [Rendering("a;b;c;"), Prefix(4), Prefix(0), Prefix(None)],
            [Rendering("x;y;z;"), Prefix(4), Prefix(0), Prefix(None)],
        ]


def test_K06_the_child_can_open_no_file_once_it_renders() -> None:
    with TemplateRenderer(ChatTemplate("t", {"default": "x"}), now=RENDER_DATE) as renderer:
        limits = Path(f"/proc/{renderer._child.pid}/limits").read_text()
    lines = {line[:26].strip(): line[26:].split() for line in limits.splitlines()}
    assert lines["Max open files"][:2] == ["3", "3"]
    assert lines["Max file size"][:2] == ["0", "0"]


def test_the_child_starts_under_limits_lower_than_its_own() -> None:
    source = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "from multigraft_trainer.intake.options import RENDER_DATE\n"
        "from multigraft_trainer.intake.template import ChatTemplate, RenderRequest, TemplateRenderer, Variant\n"
        "with TemplateRenderer(ChatTemplate('t', {'default': 'fine'}), now=RENDER_DATE) as renderer:\n"
        "    print(renderer.render([RenderRequest([], None, [Variant()])])[0][0].text)\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_dates_and_chance_do_not_change_from_day_to_day() -> None:
    source = "{{ strftime_now('%d %b %Y') }} {{ range(1000) | random }}"
    assert text(source) == text(source)
    assert text(source).startswith("26 Jul 2024")


# ---- the same text as transformers'

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "é": [1, None, 2.5]}}}
CALL = {"id": "1", "type": "function", "function": {"name": "find", "arguments": {"x": "<&'\">é\n", "y": None}}}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    MESSAGES,
    chat("  spaced \n", "x" * 50, "q", "")["messages"],
    [{"role": "system", "content": "be\tbrief"}, *MESSAGES],
    [
        {"role": "user", "content": "<b>&amp;</b>"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "{}"},
        {"role": "assistant", "content": "done 😀"},
    ],
]
EXTRAS = """\
{%- for m in messages %}
    {%- if loop.index0 == 7 %}{% break %}{% endif %}
    {%- if m.role == 'nobody' %}{% continue %}{% endif %}
    {{ m | tojson }} {{ m | tojson(indent=2) }} {{ m.content | upper | replace('X', 'y') }} {{ m.content is string }}
  {# comment #}
    {% if not add_generation_prompt %}
  no prompt
    {% endif %}
{% endfor %}{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents is none }}{{ undefined_thing }}
{{ strftime_now('%Y %B %A %j') }}
{{ 'a bc d' | wordwrap(2) }}{{ [1, {'a': 2}] | pprint }}{{ 'see http://a.b/c' | urlize }}{{ {'a': '<'} | xmlattr }}
{{ 'é'.encode('utf-8').decode('latin-1') }}{{ (lipsum(n=1, html=false) | length) > 9 }}{{ 1234567 | filesizeformat }}
{{ 'a-b' | title | center(9) | indent(2, true) }}{{ '%.3f|%5d' | format(1.5, 7) }}{{ ['b', 'A'] | sort | join(',') }}
"""


class FixedDate(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> FixedDate:  # noqa: ARG003 (the base's signature)
        return cls(RENDER_DATE.year, RENDER_DATE.month, RENDER_DATE.day)


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["no tools", "tools"])
@pytest.mark.parametrize("prompt", [False, True], ids=["whole", "generation prompt"])
@pytest.mark.parametrize(
    "source",
    [
        CHAT_TEMPLATE,
        EXTRAS,
        *(
            getattr(chat_templates, name)
            for name in ("CHATML", "MARKED", "HEADERS", "INST", "MODEL", "REASONING", "BARE")
        ),
    ],
)
def test_A15_rendered_text_and_ids_equal_transformers_apply_chat_template(
    monkeypatch: pytest.MonkeyPatch, source: str, prompt: bool, tools: list[Any] | None
) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", FixedDate)
    fast = build_tiny_tokenizer(chat_template=source)
    tokenizer = tiny_tokenizer(source)
    assert tokenizer.template is not None
    with TemplateRenderer(tokenizer.template, now=RENDER_DATE) as renderer:
        requests = [RenderRequest(messages, tools, [Variant(generation_prompt=prompt)]) for messages in CONVERSATIONS]
        results = renderer.render(requests)
    for messages, [result] in zip(CONVERSATIONS, results, strict=True):
        try:
            want = fast.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt, tokenize=False)
        except (jinja2.TemplateError, TypeError):
            assert isinstance(result, TemplateFault)
            continue
        assert isinstance(result, Rendering)
        assert result.text == want
        ids = fast.apply_chat_template(messages, tools=tools, add_generation_prompt=prompt, return_dict=False)
        assert tokenizer.backend.encode(result.text, add_special_tokens=False).ids == ids


def test_generation_marks_give_the_spans_that_transformers_gives() -> None:
    fast = build_tiny_tokenizer(chat_template=chat_templates.MARKED)
    tokenizer = tiny_tokenizer(chat_templates.MARKED)
    assert tokenizer.template is not None
    with TemplateRenderer(tokenizer.template, now=RENDER_DATE) as renderer:
        results = renderer.render([RenderRequest(messages, None, [Variant(marks=True)]) for messages in CONVERSATIONS])
    for messages, [result] in zip(CONVERSATIONS, results, strict=True):
        assert isinstance(result, Rendering)
        _, [want] = chat_template_utils.render_jinja_template(
            [messages], chat_template=fast.chat_template, return_assistant_tokens_mask=True, **fast.special_tokens_map
        )
        assert result.spans == tuple(map(tuple, want))


def test_of_several_templates_the_one_for_tools_is_used_with_tools() -> None:
    template = ChatTemplate("t", {"default": "plain", "tool_use": "with tools"})
    with TemplateRenderer(template, now=RENDER_DATE) as renderer:
        requests = [RenderRequest(MESSAGES, tools, [Variant()]) for tools in (None, [TOOL])]
        assert renderer.render(requests) == [[Rendering("plain")], [Rendering("with tools")]]
