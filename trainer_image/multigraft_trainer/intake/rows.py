"""Rows of a dataset file: JSON lines, plain or gzip, or Parquet, told apart by content and not by name alone."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake.file_name import shown_name
from multigraft_trainer.intake.jsonl import iterate_json_lines
from multigraft_trainer.intake.limits import GZIP_RATIO_FLOOR_BYTES, MAX_GZIP_RATIO, MAX_UNPACKED_BYTES
from multigraft_trainer.intake.parquet import iterate_parquet_rows
from multigraft_trainer.intake.row import Row
from multigraft_trainer.intake.samples import DroppedRow

_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_FOREIGN = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PK\x03\x04": "zip",
    b"PARE": "encrypted Parquet",
    b"ARROW1": "Arrow",
}


def read_rows(path: Path) -> Iterator[Row | DroppedRow]:
    """Read every row of a file, in order; a row that cannot be parsed comes as a `DroppedRow`.

    Raises:
        RefusalError: `DatasetNotFound` if there is no such regular file; `InvalidDataset` if the file as a whole is not
            what it should be (another container, another encoding, cut short), which no bad-row policy forgives.
    """
    name = shown_name(path)
    stat_dataset(path)
    try:
        with path.open("rb") as file:
            yield from _read_open_file(file, name, path.suffix)
    except OSError as error:
        raise RefusalError(Reason.DATASET_NOT_FOUND, f"dataset {name} cannot be read: {error.strerror}") from None


def stat_dataset(path: Path) -> os.stat_result:
    """Give the status of a dataset file.

    Raises:
        RefusalError: `DatasetNotFound` if there is no such regular file.
    """
    name = shown_name(path)
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else "not a path"
        raise RefusalError(Reason.DATASET_NOT_FOUND, f"dataset {name} cannot be read: {text}") from None
    if not stat.S_ISREG(status.st_mode):
        raise RefusalError(Reason.DATASET_NOT_FOUND, f"dataset {name} is not a regular file")
    return status


def _read_open_file(file: BinaryIO, name: str, suffix: str) -> Iterator[Row | DroppedRow]:
    head = file.read(8)
    file.seek(0)
    for magic, kind in _FOREIGN.items():
        if head.startswith(magic):
            raise _invalid(name, f"is {kind} data; JSON lines (plain or gzip) or Parquet are read")
    if head.startswith(_PARQUET):
        yield from iterate_parquet_rows(file, name)
    elif head.startswith(_GZIP):
        yield from _read_gzip(file, name)
    elif head and suffix in {".gz", ".parquet"}:
        raise _invalid(name, "does not hold what its name says; is the upload complete?")
    else:
        yield from iterate_json_lines(file, name)


def _read_gzip(file: BinaryIO, name: str) -> Iterator[Row | DroppedRow]:
    with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        yield from iterate_json_lines(io.BufferedReader(_BoundedGzip(unpacked, file, name), 2**20), name)


class _BoundedGzip(io.RawIOBase):
    """The unpacked bytes of a gzip file, with limits; damage becomes a refusal."""

    def __init__(self, unpacked: gzip.GzipFile, packed: BinaryIO, name: str) -> None:
        self._unpacked, self._packed, self._name = unpacked, packed, name
        self._num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            chunk = self._unpacked.read1(len(buffer))
        except EOFError:
            raise _invalid(self._name, "is a gzip file that ends too early; is the upload complete?") from None
        except (OSError, zlib.error):
            raise _invalid(self._name, "is a damaged gzip file") from None
        self._num_bytes += len(chunk)
        allowed = max(GZIP_RATIO_FLOOR_BYTES, MAX_GZIP_RATIO * self._packed.tell())
        if self._num_bytes > min(MAX_UNPACKED_BYTES, allowed):
            raise _invalid(
                self._name,
                f"unfolds to more than {MAX_GZIP_RATIO} times its size or more than {MAX_UNPACKED_BYTES} bytes",
            )
        buffer[: len(chunk)] = chunk
        return len(chunk)


def _invalid(name: str, message: str) -> RefusalError:
    return RefusalError(Reason.INVALID_DATASET, f"dataset {name} {message}")
