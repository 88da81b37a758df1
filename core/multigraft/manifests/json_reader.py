"""Read a file of one or several JSON objects as kubectl would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from multigraft.manifests.document import Fault
from multigraft.manifests.scalars import MAX_INTEGER_DIGITS

_MAX_SAFE_INTEGER = 2**53 - 1


class DuplicateKeyError(ValueError):
    """A key is written twice in the same object."""


def read_json(text: str) -> Iterator[tuple[int, Any, tuple[Fault, ...]]]:
    """Yield (line, value, faults) of each value; what follows a syntax error is not read."""
    decoder = json.JSONDecoder(
        object_pairs_hook=_build_object, parse_float=_parse_float, parse_int=_parse_int, parse_constant=_refuse_constant
    )
    position = 0
    while (position := _skip_blanks(text, position)) < len(text):
        line = text.count("\n", 0, position) + 1
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            yield line, None, (Fault((), f"not JSON: {error.msg}", error.lineno),)
            return
        except (ValueError, RecursionError) as error:
            text_of_error = "nested too deep" if isinstance(error, RecursionError) else str(error)
            yield line, None, (Fault((), f"not JSON: {text_of_error}", line),)
            return
        yield line, value, ()


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DuplicateKeyError(f"key {twice} is written twice in the same object")
    return found


def _parse_float(text: str) -> int | float:
    """Give whole numbers as integers, as the API server takes `8.0` for an integer field."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) <= _MAX_SAFE_INTEGER else number


def _parse_int(text: str) -> int | float:
    """Give an integer; one of thousands of digits, which `int` refuses, as the float that Go makes of it."""
    return int(text) if len(text) <= MAX_INTEGER_DIGITS else float(text)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")
