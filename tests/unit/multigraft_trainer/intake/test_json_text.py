from __future__ import annotations

import json

import pytest

from multigraft_trainer.intake.codes import RowCode, RowError
from multigraft_trainer.intake.json_text import JsonSyntaxError, parse_json
from multigraft_trainer.intake.limits import MAX_JSON_DEPTH


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "text, want",
    [
        pytest.param('{"a": 1, "A": 2}', {"a": 1, "A": 2}, id="keys differ by case"),
        pytest.param('"\\ud83d\\ude00"', "\U0001f600", id="a whole surrogate pair is one character"),
        pytest.param('"a\u2028b\u0085c"', "a\u2028b\u0085c", id="line separators inside a string are text"),
        pytest.param(str(10**40), 10**40, id="a huge integer keeps its digits"),
        pytest.param(nested(MAX_JSON_DEPTH), json.loads(nested(MAX_JSON_DEPTH)), id="the deepest nesting allowed"),
        pytest.param("[" + "[]," * 500 + "[]]", [[]] * 501, id="wide is not deep"),
    ],
)
def test_standard_json_is_read_as_it_is(text: str, want: object) -> None:
    assert parse_json(text) == want


@pytest.mark.parametrize(
    "text, want",
    [
        pytest.param('{"a": NaN}', RowCode.INVALID_NUMBER, id="NaN"),
        pytest.param("[-Infinity]", RowCode.INVALID_NUMBER, id="minus infinity"),
        pytest.param("1e999", RowCode.INVALID_NUMBER, id="a float beyond a double"),
        pytest.param("9" * 5000, RowCode.INVALID_NUMBER, id="more digits than Python converts"),
        pytest.param('{"a": 1, "a": 1}', RowCode.DUPLICATE_KEY, id="the same key twice"),
        pytest.param('{"x": [{"a": 1, "\\u0061": 2}]}', RowCode.DUPLICATE_KEY, id="the same key twice, once escaped"),
        pytest.param('"\\ud800"', RowCode.LONE_SURROGATE, id="first half of a pair"),
        pytest.param('{"\\uDFFF": 1}', RowCode.LONE_SURROGATE, id="second half of a pair in a key"),
        pytest.param('"\\ude00\\ud83d"', RowCode.LONE_SURROGATE, id="a pair the wrong way round"),
        pytest.param(nested(MAX_JSON_DEPTH + 1), RowCode.NESTED_TOO_DEEP, id="one level too deep"),
        pytest.param(nested(200_000), RowCode.NESTED_TOO_DEEP, id="deeper than Python's stack"),
        pytest.param('{"a":' * 200_000, RowCode.NESTED_TOO_DEEP, id="deep and never closed"),
    ],
)
def test_json_that_cannot_be_carried_on_is_refused_with_a_code(text: str, want: RowCode) -> None:
    with pytest.raises(RowError) as caught:
        parse_json(text)
    assert caught.value.code == want
    assert len(caught.value.message) < 100


@pytest.mark.parametrize(
    "text, incomplete",
    [
        pytest.param("", True, id="nothing"),
        pytest.param('{"a": ', True, id="ends after a colon"),
        pytest.param('{"a": "b', True, id="ends in a string"),
        pytest.param("{", True, id="an opening brace"),
        pytest.param('{"a": 1,}', False, id="a trailing comma"),
        pytest.param("{'a': 1}", False, id="single quotes"),
        pytest.param('{"a": 1} {"b": 2}', False, id="two values"),
        pytest.param('{"a": "x\ty"}', False, id="a bare tab in a string"),
        pytest.param('{"a": 01}', False, id="a leading zero"),
        pytest.param("\x00", False, id="a NUL"),
    ],
)
def test_text_that_is_not_json_is_a_syntax_error(text: str, incomplete: bool) -> None:
    with pytest.raises(JsonSyntaxError) as caught:
        parse_json(text)
    assert caught.value.incomplete == incomplete
