"""Say what a plain (unquoted) YAML scalar means to kubectl.

kubectl reads YAML with Go's sigs.k8s.io/yaml (rules of yaml.v2), which differs from PyYAML: `1e-4` is a number, `y`
and `off` are booleans, `0123` is octal, timestamps stay text. What it finds becomes JSON, so a whole float such as
`8.0` arrives at the API server as the integer 8.
Checked against the Go package itself in tests/unit/multigraft/manifests/test_server_agreement.py.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

Scalar = str | int | float | bool | None

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}

_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
    r"([Tt ][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}([.,][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})?)?"
)
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]*|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BASES = {"x": 16, "b": 2, "o": 8}

UINT64_MAX = 2**64 - 1
INT64_MIN = -(2**63)
_JSON_WRITES_EXPONENT_FROM = 1e21


def resolve_plain(text: str) -> Scalar:
    """Give the value of a plain scalar, as the API server will see it."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789" or _TIMESTAMP.fullmatch(text):
        return text
    digits = text if text[0] == "." else text.replace("_", "")
    integer = _parse_integer(digits)
    if integer is not None and INT64_MIN <= integer <= UINT64_MAX:
        return integer
    if _FLOAT.fullmatch(digits):
        number = float(digits)
        return text if math.isinf(number) else as_json_number(number)  # Go refuses what overflows; it stays text
    return text


def as_json_number(number: float) -> int | float:
    """Give the number that is read back after Go wrote `number` as JSON: whole ones come back as integers."""
    if number.is_integer() and abs(number) < _JSON_WRITES_EXPONENT_FROM:
        return int(Decimal(repr(number)))  # Go writes the shortest digits that give the double, padded with zeros
    return number


MAX_INTEGER_DIGITS = 80  # a 64-bit number in base 2 with sign and prefix has 67


def _parse_integer(digits: str) -> int | None:
    if not _INTEGER.fullmatch(digits):
        return None
    if len(digits) > MAX_INTEGER_DIGITS:
        return None  # beyond 64 bits by far: a float for Go too, and too long for int()
    sign = -1 if digits[0] == "-" else 1
    body = digits.lstrip("+-").lower()
    if len(body) > 1 and body[0] == "0":
        base = _BASES.get(body[1], 8)
        figures = body[2:] if body[1] in _BASES else body[1:]
        return sign * int(figures, base) if figures else None
    return sign * int(body)
