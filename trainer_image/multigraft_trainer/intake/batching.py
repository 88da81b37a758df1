"""Cut a stream into batches, bounded by count and by size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def iterate_batches(
    items: Iterable[T], *, max_items: int, max_size: int, size: Callable[[T], int]
) -> Iterator[list[T]]:
    """Give lists of at most `max_items`; a list ends with the item that brings its total size to `max_size`."""
    batch: list[T] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if len(batch) == max_items or total >= max_size:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
