"""Choose samples that fill a given room as far as possible.

Reachable sums are the bits of one integer (bit t set: some subset has t tokens), so that adding a sample is a shift and
an OR. Exact for up to `MAX_CANDIDATES` samples and `MAX_UNITS` units of room; beyond that a representative part is
taken first and the rest decided exactly among evenly spaced candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_CANDIDATES = 48  # per choice; a microbatch of real samples holds a few from each adapter
MAX_UNITS = 16_384  # bits of a reachability set; longer rooms are counted in larger units, lengths rounded up


def choose_subset(lengths: Sequence[int], room: int) -> list[int]:
    """Give ascending indices of samples whose lengths sum to at most `room`, as near to it as can be.

    Among equal sums the longer samples are preferred, so that short ones stay for later gaps.

    Args:
        lengths: Tokens of each sample, longest first.
        room: Tokens that may be used; below 1 nothing is chosen.
    """
    if room < 1 or not lengths:
        return []
    if sum(lengths) <= room:
        return list(range(len(lengths)))
    bulk = _choose_bulk(lengths, room)
    taken = set(bulk)
    left = room - sum(lengths[i] for i in bulk)
    fitting = [i for i in range(len(lengths)) if i not in taken and lengths[i] <= left]
    candidates = _spread(fitting, MAX_CANDIDATES)
    exact = _choose_exactly([lengths[i] for i in candidates], left)
    return sorted(bulk + [candidates[i] for i in exact])


def _choose_exactly(lengths: Sequence[int], room: int) -> list[int]:
    unit = -(-room // MAX_UNITS)
    sizes = [-(-length // unit) for length in lengths]
    mask = (1 << (room // unit + 1)) - 1
    reachable = [1]
    for size in sizes:
        reachable.append(reachable[-1] | (reachable[-1] << size) & mask)
    target = reachable[-1].bit_length() - 1
    chosen = []
    for index in range(len(sizes) - 1, -1, -1):  # shortest first: left out where the sum is reachable without it
        if not reachable[index] >> target & 1:
            chosen.append(index)
            target -= sizes[index]
    return chosen


def _choose_bulk(lengths: Sequence[int], room: int) -> list[int]:
    """Take evenly spaced samples while room for about half of the exact candidates remains."""
    if len(lengths) <= MAX_CANDIDATES:
        return []
    mean = sum(lengths) / len(lengths)
    bulk = []
    left = room - int(mean * MAX_CANDIDATES / 2)
    for index in _spread(list(range(len(lengths))), max(0, int(left / mean))):
        if lengths[index] <= left:
            bulk.append(index)
            left -= lengths[index]
    return bulk


def _spread(indices: Sequence[int], count: int) -> list[int]:
    """Give at most `count` of the indices, evenly spaced, the first and the last among them."""
    if len(indices) <= count:
        return list(indices)
    if count < 2:
        return list(indices[:count])
    return [indices[i * (len(indices) - 1) // (count - 1)] for i in range(count)]
