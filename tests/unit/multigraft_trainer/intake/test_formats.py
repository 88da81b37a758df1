from __future__ import annotations

from typing import Any

import pytest

from builders.intake import chat
from multigraft.api.adapter_job import DatasetFormat
from multigraft_trainer.intake.codes import RowCode, RowError
from multigraft_trainer.intake.formats import Conversation, PlainText, parse_row
from multigraft_trainer.intake.limits import MAX_MESSAGES

CHAT, PAIR, TEXT = DatasetFormat.CONVERSATIONAL, DatasetFormat.PROMPT_COMPLETION, DatasetFormat.TEXT
USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": None}}}


def conversation(row: dict[str, Any], dataset_format: DatasetFormat = CHAT) -> Conversation:
    parsed = parse_row(row, dataset_format)
    assert isinstance(parsed, Conversation)
    return parsed


def messages(*given: Any) -> list[dict[str, Any]]:
    return [turn.message for turn in conversation({"messages": list(given)}).turns]


def error(row: dict[str, Any], dataset_format: DatasetFormat = CHAT) -> RowError:
    with pytest.raises(RowError) as caught:
        parse_row(row, dataset_format)
    assert len(caught.value.message) < 200
    return caught.value


# ---- Conversational: what is accepted, and in which form


@pytest.mark.parametrize(
    "given, want",
    [
        pytest.param(ANSWER, ANSWER, id="as it is"),
        pytest.param({"from": "gpt", "value": "a"}, ANSWER, id="from and value"),
        pytest.param({"role": "gpt", "content": "a"}, ANSWER, id="the tag gpt as a role"),
        pytest.param({"from": "assistant", "value": "a"}, ANSWER, id="a role as a tag"),
        pytest.param({**ANSWER, "name": None, "tool_calls": None}, ANSWER, id="null keys are absent keys"),
        pytest.param({**ANSWER, "tool_calls": []}, ANSWER, id="no calls"),
        pytest.param(
            {**ANSWER, "name": "n", "date": 7}, {**ANSWER, "name": "n", "date": 7}, id="other keys are carried"
        ),
        pytest.param({**ANSWER, "weight": 1}, ANSWER, id="weight 1 is the default"),
        pytest.param(
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]},
            {"role": "assistant", "content": "a b"},
            id="parts are joined",
        ),
        pytest.param(
            {"role": "assistant", "content": []}, {"role": "assistant", "content": ""}, id="no parts, no text"
        ),
        pytest.param(
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            id="null beside calls is empty text, and null arguments stay",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"x": [1]}'}]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": [1]}}}],
            },
            id="a flat call with arguments as text becomes a nested one",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": " "}, "id": None}]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
            },
            id="blank arguments are none",
        ),
    ],
)
def test_every_spelling_of_a_turn_has_one_form(given: dict[str, Any], want: dict[str, Any]) -> None:
    assert messages(USER, given) == [USER, want]


def test_keys_keep_the_order_of_the_row_because_templates_may_print_them() -> None:
    call = {"id": "c", "function": {"strict": True, "arguments": "{}", "name": "f"}, "type": "function"}
    [turn] = messages({"name": "n", "tool_calls": [call], "value": None, "from": "gpt"})
    assert list(turn) == ["name", "tool_calls", "content", "role"]
    assert list(turn["tool_calls"][0]) == ["id", "function", "type"]
    assert list(turn["tool_calls"][0]["function"].items()) == [("strict", True), ("arguments", {}), ("name", "f")]


def test_a_conversation_that_would_take_too_long_to_render_is_refused() -> None:
    assert error({"messages": [ANSWER] * (MAX_MESSAGES + 1)}).code == RowCode.TOO_MANY_MESSAGES
    assert conversation({"messages": [ANSWER] * MAX_MESSAGES}).supervised_turns
    big = {"role": "user", "content": "x" * 2**21}
    got = error({"messages": [big, *[ANSWER] * 600]})
    assert got.code == RowCode.ROW_TOO_LONG
    assert "too many for 600 answers" in got.message
    assert conversation({"messages": [big, ANSWER]}).supervised_turns


def test_roles_may_stand_in_any_order_as_long_as_the_assistant_speaks() -> None:
    tool = {"role": "tool", "content": "r"}
    system = {"role": "system", "content": "s"}
    assert conversation({"messages": [ANSWER, tool, system, ANSWER, USER]}).supervised_turns == (0, 3)


def test_weight_zero_takes_a_turn_out_of_the_loss() -> None:
    row = {"messages": [USER, {**ANSWER, "weight": 0}, USER, ANSWER]}
    assert conversation(row).supervised_turns == (3,)


@pytest.mark.parametrize(
    "message, code, words",
    [
        pytest.param("text", RowCode.INVALID_MESSAGE, "messages[0] is not an object", id="text"),
        pytest.param(None, RowCode.INVALID_MESSAGE, "messages[0]", id="null"),
        pytest.param({"content": "a"}, RowCode.MISSING_ROLE, "`role`", id="no role"),
        pytest.param({"value": "a"}, RowCode.MISSING_ROLE, "`role`", id="no tag"),
        pytest.param({"role": 7, "content": "a"}, RowCode.UNKNOWN_ROLE, "allowed: system", id="a number as role"),
        pytest.param({"role": "Assistant", "content": "a"}, RowCode.UNKNOWN_ROLE, "'Assistant'", id="a capital letter"),
        pytest.param({"role": "user ", "content": "a"}, RowCode.UNKNOWN_ROLE, "'user '", id="a trailing space"),
        pytest.param({"role": "x" * 99, "content": "a"}, RowCode.UNKNOWN_ROLE, "role is not allowed", id="a long role"),
        pytest.param({"role": "function", "content": "a"}, RowCode.UNKNOWN_ROLE, "tool", id="the old role for results"),
        pytest.param({"from": "human", "content": "a"}, RowCode.INVALID_MESSAGE, "mixes", id="two styles in one turn"),
        pytest.param({"role": "assistant"}, RowCode.MISSING_CONTENT, "content", id="no content"),
        pytest.param({"role": "assistant", "content": None}, RowCode.MISSING_CONTENT, "null", id="null without calls"),
        pytest.param({"role": "tool", "content": None}, RowCode.MISSING_CONTENT, "null", id="null result"),
        pytest.param({"role": "assistant", "content": 3}, RowCode.INVALID_CONTENT, "neither text", id="a number"),
        pytest.param({"role": "tool", "content": {"a": 1}}, RowCode.INVALID_CONTENT, "neither text", id="an object"),
        pytest.param(
            {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
            RowCode.INVALID_CONTENT,
            "content[0]",
            id="an image",
        ),
        pytest.param(
            {"role": "user", "content": ["a"]}, RowCode.INVALID_CONTENT, "content[0]", id="bare text as a part"
        ),
        pytest.param(
            {"role": "user", "content": "a", "tool_calls": [CALL]},
            RowCode.INVALID_TOOL_CALLS,
            "assistant",
            id="user calls",
        ),
        pytest.param({**ANSWER, "tool_calls": "f()"}, RowCode.INVALID_TOOL_CALLS, "not a list", id="calls as text"),
        pytest.param(
            {**ANSWER, "tool_calls": [{}]}, RowCode.INVALID_TOOL_CALLS, "function.name", id="a call without name"
        ),
        pytest.param(
            {**ANSWER, "tool_calls": [{"name": "f", "arguments": "{x"}]},
            RowCode.INVALID_TOOL_CALLS,
            "not JSON",
            id="cut text",
        ),
        pytest.param(
            {**ANSWER, "tool_calls": [{"name": "f", "arguments": "[1]"}]},
            RowCode.INVALID_TOOL_CALLS,
            "not an object",
            id="a list of arguments",
        ),
        pytest.param(
            {**ANSWER, "tool_calls": [{"name": "f", "arguments": '{"a": NaN}'}]},
            RowCode.INVALID_NUMBER,
            "NaN",
            id="NaN",
        ),
        pytest.param(
            {**ANSWER, "function_call": {"name": "f"}},
            RowCode.INVALID_TOOL_CALLS,
            "tool_calls",
            id="the old call field",
        ),
        pytest.param({**ANSWER, "weight": 0.5}, RowCode.INVALID_WEIGHT, "0 or 1", id="half a weight"),
        pytest.param({**ANSWER, "weight": True}, RowCode.INVALID_WEIGHT, "0 or 1", id="a truth value as weight"),
        pytest.param({**USER, "weight": 1}, RowCode.INVALID_WEIGHT, "assistant", id="a weight on a question"),
    ],
)
def test_a_bad_turn_is_named_by_index_with_what_is_allowed(message: Any, code: RowCode, words: str) -> None:
    got = error({"messages": [message, USER, ANSWER]})
    assert got.code == code
    assert words in got.message


@pytest.mark.parametrize(
    "row, code",
    [
        pytest.param({}, RowCode.MISSING_MESSAGES, id="nothing"),
        pytest.param({"messages": None}, RowCode.NULL_MESSAGES, id="null"),
        pytest.param({"messages": []}, RowCode.EMPTY_MESSAGES, id="empty"),
        pytest.param({"messages": "[]"}, RowCode.MESSAGES_NOT_A_LIST, id="text"),
        pytest.param({"messages": {"role": "user"}}, RowCode.MESSAGES_NOT_A_LIST, id="one message"),
        pytest.param({"messages": [ANSWER], "conversations": [ANSWER]}, RowCode.AMBIGUOUS_ROW, id="both names"),
        pytest.param({"messages": [USER]}, RowCode.NO_ASSISTANT_TURN, id="no answer"),
        pytest.param({"messages": [{**ANSWER, "weight": 0}]}, RowCode.NO_ASSISTANT_TURN, id="no answer that counts"),
        pytest.param(chat("q", "a", tools={"a": 1}), RowCode.INVALID_TOOLS, id="tools as an object"),
        pytest.param(chat("q", "a", tools=[{}]), RowCode.INVALID_TOOLS, id="a tool without name"),
        pytest.param(chat("q", "a", tools="[{bad"), RowCode.INVALID_TOOLS, id="tools as broken text"),
        pytest.param(chat("q", "a", tools="7"), RowCode.INVALID_TOOLS, id="tools as a number in text"),
    ],
)
def test_a_bad_conversation_has_a_code_of_its_own(row: dict[str, Any], code: RowCode) -> None:
    assert error(row).code == code


@pytest.mark.parametrize("tools", [None, "", " \n", "[]", "null", []])
def test_no_tools_are_no_tools_however_they_are_written(tools: Any) -> None:
    assert conversation(chat("q", "a", tools=tools)).tools is None


def test_tools_as_text_are_the_tools() -> None:
    assert conversation(chat("q", "a", tools='[{"name": "f"}]')).tools == [{"name": "f"}]


# ---- PromptCompletion and Text


def test_text_formats_give_text_and_where_it_is_learnt() -> None:
    assert parse_row({"prompt": "ab", "completion": "c"}, PAIR) == PlainText("abc", supervised_from=2)
    assert parse_row({"prompt": "", "completion": ""}, PAIR) == PlainText("", supervised_from=0)
    assert parse_row({"text": "abc", "prompt": 1}, TEXT) == PlainText("abc", supervised_from=0)


def test_lists_of_messages_give_a_conversation_whose_completion_is_learnt() -> None:
    row = {"prompt": [USER, ANSWER, USER], "completion": [ANSWER], "tools": [{"name": "f"}]}
    got = conversation(row, PAIR)
    assert got.supervised_turns == (3,)
    assert got.tools == [{"name": "f"}]


@pytest.mark.parametrize(
    "row, dataset_format, code",
    [
        ({"completion": "c"}, PAIR, RowCode.MISSING_PROMPT),
        ({"prompt": None, "completion": "c"}, PAIR, RowCode.MISSING_PROMPT),
        ({"prompt": "p"}, PAIR, RowCode.MISSING_COMPLETION),
        ({"prompt": 1, "completion": "c"}, PAIR, RowCode.INVALID_PROMPT),
        ({"prompt": "p", "completion": ["c"]}, PAIR, RowCode.INVALID_COMPLETION),
        ({"prompt": [USER], "completion": "c"}, PAIR, RowCode.INVALID_COMPLETION),
        ({"prompt": [USER], "completion": [USER]}, PAIR, RowCode.NO_ASSISTANT_TURN),
        ({"prompt": [], "completion": [ANSWER]}, PAIR, RowCode.EMPTY_MESSAGES),
        ({"prompt": [USER], "completion": [{"role": "x"}]}, PAIR, RowCode.UNKNOWN_ROLE),
        ({}, TEXT, RowCode.MISSING_TEXT),
        ({"text": ["a"]}, TEXT, RowCode.INVALID_TEXT),
        ({"text": ""}, TEXT, RowCode.EMPTY_TEXT),
    ],
)
def test_a_bad_row_of_the_text_formats_has_a_code(
    row: dict[str, Any], dataset_format: DatasetFormat, code: RowCode
) -> None:
    assert error(row, dataset_format).code == code


@pytest.mark.parametrize(
    "row, asked, looks",
    [
        (chat("q", "a"), PAIR, "Conversational"),
        ({"conversations": []}, TEXT, "Conversational"),
        ({"prompt": "p", "completion": "c"}, CHAT, "PromptCompletion"),
        ({"text": "t"}, CHAT, "Text"),
    ],
)
def test_a_row_of_another_format_is_named(row: dict[str, Any], asked: DatasetFormat, looks: str) -> None:
    message = error(row, asked).message
    assert f"looks like format {looks}" in message
    assert f"the job says {asked}" in message
