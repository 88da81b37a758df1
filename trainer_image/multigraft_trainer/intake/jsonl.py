"""JSON lines: one object per line, lines split on LF bytes and nothing else.

A line that is no JSON is a bad row where the lines around it are good. Where it shows that the file as a whole is
something else (one array, objects over several lines, Python literals, another encoding, an upload cut short) the file
is refused, whatever the bad-row policy: half of such a file must not train silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake.codes import RowCode, RowError
from multigraft_trainer.intake.json_text import JsonSyntaxError, parse_json
from multigraft_trainer.intake.limits import MAX_ROW_BYTES, MAX_ROWS
from multigraft_trainer.intake.row import Row, dropped
from multigraft_trainer.intake.samples import DroppedRow

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"  # JSON's own white space
_KINDS = {
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    list: "a list",
}


class LineStream(Protocol):
    """A binary stream at its start."""

    def readline(self, limit: int = -1, /) -> bytes:
        """Give the bytes up to and with the next LF, at most `limit`."""
        ...


def iterate_json_lines(stream: LineStream, name: str) -> Iterator[Row | DroppedRow]:
    """Parse each line that is not blank.

    Args:
        name: The file's name for messages.

    Raises:
        RefusalError: `InvalidDataset` for faults of the file as a whole.
    """
    num_rows = 0
    pending: tuple[int, JsonSyntaxError] | None = None  # a bad line; whether it is just a row shows with the next one
    for number, line in _lines(stream):
        if line is not None and number == 1:
            _check_encoding(line, name)
        content = None if line is None else _without_marks(line)
        if content == b"":
            continue
        num_rows += 1
        if num_rows > MAX_ROWS:
            raise RefusalError(Reason.INVALID_DATASET, f"dataset {name} has more than {MAX_ROWS} rows")
        row = _parse_line(number, content, name)
        if isinstance(row, JsonSyntaxError):
            if num_rows == 1 or (pending is not None and pending[1].incomplete):
                raise _container_fault(name, *(pending or (number, row)), first=True)
            if pending is not None:
                yield dropped(*pending)
            pending = (number, row)
            continue
        if pending is not None:
            yield dropped(*pending)
            pending = None
        yield row
    if pending is not None:
        raise _container_fault(name, *pending, first=False)


def _lines(stream: LineStream) -> Iterator[tuple[int, bytes | None]]:
    """Give (line number, bytes up to and with LF); None for a line over the limit."""
    number = 0
    while line := stream.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(line) <= MAX_ROW_BYTES or line.endswith(b"\n"):
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(2**20)
        yield number, None


def _without_marks(line: bytes) -> bytes:
    """Cut white space and byte-order marks, which files glued together carry at the start of inner lines too."""
    line = line.strip(_BLANK)
    while line.startswith(_BOM):
        line = line[len(_BOM) :].lstrip(_BLANK)
    return line


def _parse_line(number: int, content: bytes | None, name: str) -> Row | DroppedRow | JsonSyntaxError:
    if content is None:
        error = RowError(RowCode.ROW_TOO_LONG, f"the line is longer than {MAX_ROW_BYTES} bytes")
        return dropped(number, error)
    try:
        value = parse_json(content.decode())
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and error.end == len(content):
            return JsonSyntaxError(f"the line ends inside a character at byte {error.start + 1}", incomplete=True)
        return dropped(number, RowError(RowCode.NOT_UTF8, f"not UTF-8 at byte {error.start + 1}"))
    except JsonSyntaxError as error:
        if content.startswith((b"{'", b"[{'")):
            raise _fault(name, number, "this is a Python literal, not JSON: strings need double quotes") from None
        return error
    except RowError as error:
        return dropped(number, error)
    if not isinstance(value, dict):
        text = f"the line holds {_KINDS[type(value)]}, but each line must be one JSON object"
        if isinstance(value, list):
            text = "the line is a JSON array; write one object per line, without the enclosing [ ]"
        raise _fault(name, number, text)
    return Row(number, value)


def _check_encoding(first_line: bytes, name: str) -> None:
    for mark, encoding in (
        (b"\xff\xfe\x00\x00", "UTF-32 (little endian)"),
        (b"\x00\x00\xfe\xff", "UTF-32 (big endian)"),
        (b"\xff\xfe", "UTF-16 (little endian)"),
        (b"\xfe\xff", "UTF-16 (big endian)"),
    ):
        if first_line.startswith(mark):
            raise RefusalError(Reason.INVALID_DATASET, f"dataset {name} is encoded in {encoding}; UTF-8 is needed")
    nul = [byte == 0 for byte in first_line[:4]]
    for pattern, encoding in (
        ([False, True, True, True], "UTF-32 (little endian)"),
        ([True, True, True, False], "UTF-32 (big endian)"),
        ([False, True, False, True], "UTF-16 (little endian)"),
        ([True, False, True, False], "UTF-16 (big endian)"),
    ):
        if nul == pattern:
            raise RefusalError(Reason.INVALID_DATASET, f"dataset {name} looks like {encoding}; UTF-8 is needed")


def _container_fault(name: str, number: int, error: JsonSyntaxError, *, first: bool) -> RefusalError:
    if not first:
        return _fault(name, number, f"the last line is {error.message}; was the file cut short?")
    if error.incomplete:
        cause = "is one JSON value spread over several lines? Each line must be one whole JSON object"
    else:
        cause = "each line must be one whole JSON object (JSON lines)"
    return _fault(name, number, f"{error.message}; {cause}")


def _fault(name: str, number: int, message: str) -> RefusalError:
    return RefusalError(Reason.INVALID_DATASET, f"dataset {name}, line {number}: {message}")
