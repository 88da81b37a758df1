"""Which tokens of a text are supervised, from character spans and the tokenizer's offsets."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def build_mask(offsets: NDArray[np.int64], spans: Iterable[tuple[int, int]]) -> NDArray[np.bool_]:
    """Mark every token that holds a character of a span.

    A token that straddles the boundary of a span is supervised: the model has to produce it to produce the characters.
    The first token is never supervised, as nothing predicts it.

    Args:
        offsets: [L, 2] start and end character of each token; special tokens that are not in the text have (0, 0).
        spans: [start, end) in characters.

    Returns:
        [L] bool.
    """
    starts, ends = offsets[:, 0].copy(), offsets[:, 1]
    # tokenizers that trim offsets give white space the empty range at its end: it begins where the last ended
    empty = np.flatnonzero((starts == ends) & (np.arange(len(ends)) > 0))
    starts[empty] = ends[empty - 1]
    mask = np.zeros(len(offsets), dtype=np.bool_)
    for start, end in spans:
        mask |= (starts < end) & (ends > start)
    mask[:1] = False
    return mask
