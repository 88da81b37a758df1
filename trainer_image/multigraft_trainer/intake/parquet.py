"""Rows of a Parquet file: nested columns or columns of JSON text, without the null keys that Arrow's structs invent.

Arrow gives every struct of a column the union of all keys and fills the gaps with null. A null inside a nested column
is therefore taken as an absent key, on every level. Where null must be kept, store the column as JSON text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake.codes import RowCode, RowError
from multigraft_trainer.intake.json_text import check_whole_characters, parse_json
from multigraft_trainer.intake.limits import MAX_JSON_DEPTH, MAX_ROW_BYTES, MAX_ROWS, MAX_UNPACKED_BYTES
from multigraft_trainer.intake.row import Row, dropped
from multigraft_trainer.intake.samples import DroppedRow

READ_COLUMNS = ("messages", "conversations", "tools", "prompt", "completion", "text")
_JSON_TEXT_COLUMNS = ("messages", "conversations")
_BATCH_ROWS = 256
_CONTAINERS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_dictionary)


def iterate_parquet_rows(file: BinaryIO, name: str) -> Iterator[Row | DroppedRow]:
    """Read the columns that intake knows, row by row; rows are numbered from 1.

    Raises:
        RefusalError: `InvalidDataset` if the file is damaged, too large, or a column's type is none of JSON's.
    """
    try:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        _check_size(parquet.metadata, name)
        schema = parquet.schema_arrow
        columns = [column for column in READ_COLUMNS if column in schema.names]
        for column in columns:
            if schema.names.count(column) > 1:
                raise _invalid(name, f"has the column `{column}` twice")
            _check_type(schema.field(column).type, column, name)
        if not columns:
            yield from (Row(number, {}) for number in range(1, parquet.metadata.num_rows + 1))
            return
        number = 0
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
            for index in range(batch.num_rows):
                number += 1
                yield _read_row(number, batch, index)
    except RefusalError:
        raise
    except (pa.ArrowException, OSError, MemoryError, ValueError):  # ValueError: names of columns that are not UTF-8
        raise _invalid(name, "is a damaged or unreadable Parquet file") from None


def _check_size(metadata: pq.FileMetaData, name: str) -> None:
    if metadata.num_rows > MAX_ROWS:
        raise _invalid(name, f"has {metadata.num_rows} rows; at most {MAX_ROWS} are read")
    num_bytes = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if num_bytes > MAX_UNPACKED_BYTES:
        raise _invalid(name, f"unfolds to {num_bytes} bytes; at most {MAX_UNPACKED_BYTES} are read")


def _check_type(kind: pa.DataType, column: str, name: str, depth: int = 0) -> None:
    if depth > MAX_JSON_DEPTH:
        raise _invalid(name, f"nests the column `{column}` more than {MAX_JSON_DEPTH} deep")
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        if len(set(names)) != len(names):
            raise _invalid(name, f"has a struct with the same key twice in the column `{column}`")
        children = [kind.field(index).type for index in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        if not _is_text(kind.key_type):
            raise _invalid(name, f"has a map without text keys in the column `{column}`")
        children = [kind.item_type]
    elif any(test(kind) for test in _CONTAINERS):
        children = [kind.value_type]
    elif _is_plain(kind):
        children = []
    else:
        raise _invalid(
            name, f"has the type {str(kind)[:40]} in the column `{column}`; text, numbers, lists, structs are read"
        )
    for child in children:
        _check_type(child, column, name, depth + 1)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_plain(kind: pa.DataType) -> bool:
    tests = (_is_text, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    return any(test(kind) for test in tests)


def _read_row(number: int, batch: pa.RecordBatch, index: int) -> Row | DroppedRow:
    try:
        value: dict[str, Any] = {}
        for column, array in zip(batch.schema.names, batch.columns, strict=True):
            cell = _plain(array[index].as_py(), array.type)
            if cell is None:
                continue
            value[column] = _read_text(cell, column) if isinstance(cell, str) else cell
        check_whole_characters(value)
    except UnicodeDecodeError:
        return dropped(number, RowError(RowCode.NOT_UTF8, "a text is not UTF-8"))
    except RowError as error:
        return dropped(number, error)
    return Row(number, value)


def _read_text(text: str, column: str) -> Any:
    if len(text) > MAX_ROW_BYTES:
        raise RowError(RowCode.ROW_TOO_LONG, f"`{column}` is longer than {MAX_ROW_BYTES} characters")
    return parse_json(text) if column in _JSON_TEXT_COLUMNS else text


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Give a value of JSON's types; keys whose value is null are left out."""
    if value is None:
        return None
    if pa.types.is_dictionary(kind):
        return _plain(value, kind.value_type)
    if pa.types.is_struct(kind):
        items = ((kind.field(i).name, kind.field(i).type) for i in range(kind.num_fields))
        return {key: _plain(value[key], child) for key, child in items if value[key] is not None}
    if pa.types.is_map(kind):
        if len({key for key, _ in value}) != len(value):
            raise RowError(RowCode.DUPLICATE_KEY, "a map has the same key twice")
        return {key: _plain(item, kind.item_type) for key, item in value if item is not None}
    if isinstance(value, list):
        return [_plain(item, kind.value_type) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise RowError(RowCode.INVALID_NUMBER, "a number is NaN or infinite")
    return value


def _invalid(name: str, message: str) -> RefusalError:
    return RefusalError(Reason.INVALID_DATASET, f"dataset {name} {message}")
