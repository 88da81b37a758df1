"""Strict JSON: what one line may hold. Standard JSON only, each key once, finite numbers, whole characters."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from multigraft_trainer.intake.codes import RowCode, RowError
from multigraft_trainer.intake.limits import MAX_JSON_DEPTH

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class JsonSyntaxError(RowError):
    """The text is not JSON."""

    def __init__(self, message: str, *, incomplete: bool) -> None:
        super().__init__(RowCode.INVALID_JSON, message)
        self.incomplete = incomplete  # the text ends before the value does


def parse_json(text: str) -> Any:
    """Parse one JSON value.

    Raises:
        JsonSyntaxError: If the text is not JSON.
        RowError: If it is JSON that cannot be carried on unchanged: NaN or Infinity, a number beyond range, a key
            twice in one object, nesting beyond `MAX_JSON_DEPTH`, half of a surrogate pair.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        incomplete = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        # `msg` comes from a fixed list of the json module and holds no text of the row
        raise JsonSyntaxError(f"not JSON at column {error.pos + 1}: {error.msg}", incomplete=incomplete) from None
    except RowError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # an integer of more digits than Python converts (4300)
        raise RowError(RowCode.INVALID_NUMBER, "an integer has too many digits") from None
    if text.count("{") + text.count("[") > MAX_JSON_DEPTH:
        _check_depth(value)
    if _SURROGATE_ESCAPE.search(text):
        check_whole_characters(value)
    return value


def check_whole_characters(value: Any) -> None:
    """Raise `RowError` if a string of the value holds half of a surrogate pair, which no UTF-8 text can."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                raise RowError(RowCode.LONE_SURROGATE, "a string holds half of a surrogate pair") from None
        elif isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_JSON_DEPTH):
        children = (child for item in level for child in (item.values() if isinstance(item, dict) else item))
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> RowError:
    return RowError(RowCode.NESTED_TOO_DEEP, f"objects and lists are nested more than {MAX_JSON_DEPTH} deep")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise RowError(RowCode.DUPLICATE_KEY, "an object has the same key twice")
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RowError(RowCode.INVALID_NUMBER, "a number is beyond the range of a double")
    return value


def _constant(name: str) -> Any:
    raise RowError(RowCode.INVALID_NUMBER, f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
