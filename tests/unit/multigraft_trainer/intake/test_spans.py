from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import chat_templates
from builders.intake import chat, tiny_tokenizer
from builders.tiny_base import CHAT_TEMPLATE
from multigraft.api.adapter_job import DatasetFormat
from multigraft_trainer.intake.codes import RowCode, RowError
from multigraft_trainer.intake.formats import Conversation, parse_row
from multigraft_trainer.intake.options import RENDER_DATE
from multigraft_trainer.intake.spans import (
    RenderedConversation,
    SpansNotFoundError,
    check_template,
    render_conversations,
)
from multigraft_trainer.intake.template_probe import ProbedTemplate

END = "<|im_end|>"
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]

Outcome = RenderedConversation | RowError | SpansNotFoundError


@contextmanager
def probed(template: str) -> Iterator[ProbedTemplate]:
    chat_template = tiny_tokenizer(template).template
    assert chat_template is not None
    with ProbedTemplate(chat_template, now=RENDER_DATE) as started:
        yield started


def parse(row: dict[str, Any]) -> Conversation:
    format_ = DatasetFormat.CONVERSATIONAL if "messages" in row else DatasetFormat.PROMPT_COMPLETION
    conversation = parse_row(row, format_)
    assert isinstance(conversation, Conversation)
    return conversation


def outcomes(template: str, rows: list[dict[str, Any]]) -> list[Outcome]:
    with probed(template) as started:
        return render_conversations([parse(row) for row in rows], started)


def learnt(template: str, row: dict[str, Any]) -> list[str]:
    """Give the supervised pieces of text."""
    [outcome] = outcomes(template, [row])
    assert isinstance(outcome, RenderedConversation), outcome
    return [outcome.text[start:end] for start, end in outcome.spans]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    "name, want",
    [
        ("CHATML", [f"a{END}", f"b b{END}"]),
        ("MARKED", [f"a{END}", f"b b{END}"]),
        ("HEADERS", [f"a{END}", f"b b{END}"]),
        ("TRAILING", [f"a{END}", f"b b{END}"]),
        ("INST", [f" a{END}", f" b b{END}"]),
        ("MODEL", [f"a{END}", f"b b{END}"]),
        ("REASONING", [f"a{END}", f"<think>\n\n</think>\n\nb b{END}"]),
        ("OPENED", [f"a{END}", f"b b{END}"]),
        ("PARTS", [f"a{END}", f"b b{END}"]),
        ("BARE", ["a\n", "b b\n"]),
    ],
)
def test_A14_what_the_assistant_says_is_found_in_every_family_of_templates(name: str, want: list[str]) -> None:
    assert learnt(getattr(chat_templates, name), chat("q", "a", "q q", "b b")) == want


@pytest.mark.parametrize(
    "name", ["CHATML", "HEADERS", "INST", "MODEL", "REASONING", "OPENED", "PARTS", "BARE", "MARKED", "TRAILING"]
)
def test_a_question_at_the_end_has_no_label(name: str) -> None:
    [answer] = learnt(getattr(chat_templates, name), chat("q", "a", "unanswered"))
    assert "a" in answer
    assert "unanswered" not in answer


def test_equal_texts_are_told_apart_by_place() -> None:
    row = chat("yes", "yes", "yes", "yes")
    [outcome] = outcomes(chat_templates.CHATML, [row])
    assert isinstance(outcome, RenderedConversation)
    turn = f"<|im_start|>assistant\nyes{END}"
    first = outcome.text.index(turn) + len("<|im_start|>assistant\n")
    second = outcome.text.index(turn, first) + len("<|im_start|>assistant\n")
    assert outcome.spans == ((first, first + len(f"yes{END}")), (second, second + len(f"yes{END}")))


CALL_X = '{"name": "find", "arguments": {"x": 1}}'
CALL_Y = '{"name": "find", "arguments": {"y": "two"}}'
TOOL_ROW: dict[str, Any] = {
    "tools": TOOLS,
    "messages": [
        {"role": "user", "content": "old question"},
        {"role": "assistant", "content": None, "tool_calls": [call("find", x=1), call("find", y="two")]},
        {"role": "tool", "content": "secret result"},
        {"role": "assistant", "content": "old answer"},
        {"role": "user", "content": "new question"},
        {"role": "assistant", "content": "new answer"},
    ],
}


@pytest.mark.parametrize(
    "template, want",
    [
        pytest.param(
            CHAT_TEMPLATE,
            [
                f"<tool_call>{CALL_X}</tool_call><tool_call>{CALL_Y}</tool_call>{END}",
                "old answer<|im_end|>",
                "new answer<|im_end|>",
            ],
            id="prefixes hold",
        ),
        pytest.param(
            chat_templates.INST,
            [
                f"[CALLS]{CALL_X}{CALL_Y}{END}",
                " old answer<|im_end|>",
                " new answer<|im_end|>",
            ],
            id="tools stand before the last question",
        ),
        pytest.param(
            chat_templates.REASONING,
            [
                f"\n<tool_call>{CALL_X}</tool_call>\n<tool_call>{CALL_Y}</tool_call>{END}",
                "old answer<|im_end|>",
                "<think>\n\n</think>\n\nnew answer<|im_end|>",
            ],
            id="turns change once others follow",
        ),
    ],
)
def test_A21_calls_and_answers_are_learnt_and_results_are_not(template: str, want: list[str]) -> None:
    assert learnt(template, TOOL_ROW) == want


def test_reasoning_is_learnt_where_the_template_shows_it() -> None:
    messages = chat("q", "old", "q", "new")["messages"]
    for message in messages[1::2]:
        message["reasoning_content"] = f"why {message['content']}"
    want = [f"old{END}", f"<think>\nwhy new\n</think>\n\nnew{END}"]
    assert learnt(chat_templates.REASONING, {"messages": messages}) == want


def test_reasoning_that_a_template_never_shows_rejects_the_row() -> None:
    row = chat("q", "a")
    row["messages"][1]["reasoning_content"] = "why"
    [outcome] = outcomes(chat_templates.CHATML, [row])
    assert isinstance(outcome, RowError)
    assert outcome.code == RowCode.NOT_RENDERED
    assert "reasoning_content" in outcome.message


@pytest.mark.parametrize(
    "name", ["CHATML", "HEADERS", "INST", "MODEL", "REASONING", "OPENED", "PARTS", "BARE", "TRAILING"]
)
def test_the_families_pass_the_check_before_any_row(name: str) -> None:
    with probed(getattr(chat_templates, name)) as template:
        check_template(template)
        assert bool(template.trailing_prompt) == (name == "TRAILING")


def test_a_template_whose_last_turn_cannot_be_closed_fails_the_check_before_any_row() -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}end of {{ messages | length }}"
    )
    with probed(template) as started, pytest.raises(SpansNotFoundError, match="more than the answer"):
        check_template(started)


def test_a_turn_of_weight_zero_is_shown_but_not_learnt() -> None:
    row = chat("q", "wrong", "q", "right")
    row["messages"][1]["weight"] = 0
    for template in (chat_templates.CHATML, chat_templates.MARKED):
        assert learnt(template, row) == [f"right{END}"]


def test_of_prompt_and_completion_messages_the_completion_is_learnt() -> None:
    row = {
        "prompt": chat("q", "given", "q")["messages"],
        "completion": [{"role": "assistant", "content": "asked for"}],
    }
    for template in (chat_templates.CHATML, chat_templates.MARKED, chat_templates.REASONING):
        assert learnt(template, row)[-1].endswith(f"asked for{END}")
        assert "given" not in "".join(learnt(template, row))


def test_two_answers_in_a_row_are_both_learnt() -> None:
    messages = [{"role": "user", "content": "q"}, *({"role": "assistant", "content": text} for text in "ab")]
    assert learnt(chat_templates.CHATML, {"messages": messages}) == [f"a{END}", f"b{END}"]


def test_an_answer_that_comes_first_is_learnt() -> None:
    row = {"messages": [{"role": "assistant", "content": "hello"}, *chat("q", "a")["messages"]]}
    for template in (CHAT_TEMPLATE, chat_templates.CHATML, chat_templates.HEADERS):
        assert learnt(template, row) == [f"hello{END}", f"a{END}"]


def test_marks_inside_a_macro_and_a_captured_block_are_found() -> None:
    template = """\
{%- macro turn(message) %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% endmacro %}
{%- set captured %}{% for message in messages %}[{{ message.role }}]
{%- if message.role == 'assistant' %}{{ turn(message) }}{% else %}{{ message.content }}{% endif %}
{%- endfor %}{% endset %}{{ captured }}"""
    assert learnt(template, chat("q", "a", "q", "b")) == [f"a{END}", f"b{END}"]


def test_private_use_characters_in_a_row_do_not_confuse_the_marks() -> None:
    text = "".join(map(chr, range(0xE000, 0xE010)))
    assert learnt(chat_templates.MARKED, chat(text, text)) == [text + END]


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(
            "{%- for m in messages %}<{{ m.role }}>{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}"
            "{% else %}{{ m.content }}{% endif %}{% endfor %}",
            id="marks on the last turn only",
        ),
        pytest.param(
            "{%- set t %}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
            "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}{% endset %}"
            "{{ t ~ t | length }}",
            id="marks that change the text",
        ),
        pytest.param(
            "{%- for m in messages | reverse %}<{{ m.role }}>{{ m.content }}\n{% endfor %}", id="turns in reverse order"
        ),
        pytest.param(
            "{%- for m in messages %}{{ m.role }}{{ m.content }}{{ messages | length }}{% endfor %}",
            id="every turn depends on their number",
        ),
    ],
)
def test_A14_a_template_whose_turns_cannot_be_told_apart_is_an_error(template: str) -> None:
    [outcome] = outcomes(template, [chat("q", "a", "q", "b")])
    assert isinstance(outcome, SpansNotFoundError), outcome


@pytest.mark.parametrize(
    "template, row, words",
    [
        pytest.param(chat_templates.CHATML, TOOL_ROW, "tools[0]", id="tools are dropped"),
        pytest.param(
            chat_templates.CHATML,
            {"messages": TOOL_ROW["messages"]},
            "tool calls of turn 2",
            id="tool calls are dropped",
        ),
        pytest.param(
            "{%- for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}",
            {"messages": [{"role": "system", "content": "be brief"}, *chat("q", "a")["messages"]]},
            "turn 1 (system)",
            id="the system turn is dropped",
        ),
        pytest.param(
            "{%- for m in messages %}<{{ m.role }}>{{ m.content[:30] }}{% endfor %}",
            chat("q", "word " * 20),
            "turn 2 (assistant)",
            id="an answer is cut",
        ),
    ],
)
def test_what_a_template_drops_silently_rejects_the_row(template: str, row: dict[str, Any], words: str) -> None:
    [outcome] = outcomes(template, [row])
    assert isinstance(outcome, RowError), outcome
    assert outcome.code == RowCode.NOT_RENDERED
    assert words in outcome.message


def test_a_conversation_that_the_template_refuses_is_a_row_error_in_the_template_s_own_words() -> None:
    rows = [
        {"messages": [{"role": "system", "content": "s"}, *chat("q", "a")["messages"]]},
        {"messages": chat("q", "a")["messages"] * 2},
        {"messages": [*chat("q", "a")["messages"], {"role": "assistant", "content": "b"}]},
    ]
    first, second, third = outcomes(chat_templates.MODEL, rows)
    assert isinstance(first, RowError)
    assert "'System role not supported'" in first.message
    assert isinstance(second, RenderedConversation)
    assert isinstance(third, RowError)
    assert third.code == RowCode.TEMPLATE_REFUSED
    assert "Roles must alternate" not in third.message  # followed by text of the row


# ---- property: whatever is said, what is learnt is what the assistant said, and its end

SAYABLE = st.text(st.characters(exclude_categories=["Cs", "Co"]), max_size=15) | st.sampled_from(
    [
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "\n\n",
        "  x  ",
        "</tool_call>",
        "{{ 7*7 }}",
        "null",
        "[/INST]",
        "multigraft",
    ]
)


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(SAYABLE, min_size=2, max_size=6))
@pytest.mark.parametrize("name", ["CHATML", "MARKED", "HEADERS", "INST", "PARTS", "MODEL", "TRAILING"])
def test_A14_what_is_learnt_is_what_the_assistant_said(name: str, texts: list[str]) -> None:
    trims = name in {"HEADERS", "MODEL", "TRAILING"}
    space = " " if name == "INST" else ""
    want = [space + (text.strip() if trims else text) + END for text in texts[1::2]]
    with started(name) as template:
        [outcome] = render_conversations([parse(chat(*texts))], template)
    assert isinstance(outcome, RenderedConversation), outcome
    assert [outcome.text[start:end] for start, end in outcome.spans] == want


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(SAYABLE, min_size=4, max_size=8))
def test_A14_anchors_find_what_the_assistant_said_or_nothing(texts: list[str]) -> None:
    with started("REASONING") as template:
        [outcome] = render_conversations([parse(chat(*texts))], template)
    assert isinstance(outcome, RenderedConversation), outcome
    got = [outcome.text[start:end] for start, end in outcome.spans]
    assert [piece.removeprefix("<think>\n\n</think>\n\n") for piece in got] == [text + END for text in texts[1::2]]


_RUNNING: dict[str, ProbedTemplate] = {}


@pytest.fixture(scope="module", autouse=True)
def _close_templates() -> Iterator[None]:
    yield
    for template in _RUNNING.values():
        template.close()
    _RUNNING.clear()


@contextmanager
def started(name: str) -> Iterator[ProbedTemplate]:
    """Give a template that is started once for all examples."""
    if name not in _RUNNING:
        chat_template = tiny_tokenizer(getattr(chat_templates, name)).template
        assert chat_template is not None
        _RUNNING[name] = ProbedTemplate(chat_template, now=RENDER_DATE)
    yield _RUNNING[name]
