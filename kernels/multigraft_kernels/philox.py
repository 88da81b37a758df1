"""Philox4x32: a counter-based random number generator. The same (counter, key) gives the same four words anywhere.

Rounds   7 pass BigCrush (the authors' count with a margin is 10); we use 7
Source   Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011), sections 3.3 and 4.3
Checked  against the known-answer vectors of the authors' library Random123 (tests/.../test_philox.py)
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 7

# Multipliers and key increments of Philox4x32 (paper, section 3.3; the increments are the golden ratio and sqrt(3) - 1)
MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85

MASK_32 = 0xFFFFFFFF
MASK_64 = 0xFFFFFFFFFFFFFFFF

Words = NDArray[np.uint64]


def philox4x32(counter: Words, key: Words, rounds: int = ROUNDS) -> Words:
    """Give four 32-bit words per counter and key.

    Args:
        counter: [..., 4] uint64, each below 2**32.
        key: [..., 2] uint64, each below 2**32; broadcast against `counter`.
    Returns:
        [..., 4] uint64, each below 2**32.
    """
    low = np.uint64(MASK_32)
    half = np.uint64(32)
    c0, c1, c2, c3 = (counter[..., word].astype(np.uint64) for word in range(4))
    k0, k1 = (key[..., word].astype(np.uint64) for word in range(2))
    for _ in range(rounds):
        p0 = np.uint64(MULTIPLIER_0) * c0
        p1 = np.uint64(MULTIPLIER_1) * c2
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
        k0 = (k0 + np.uint64(WEYL_0)) & low
        k1 = (k1 + np.uint64(WEYL_1)) & low
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1)


def build_key(seed: int, site: int) -> int:
    """Mix an adapter's seed and a site (one place that draws random numbers) to a 64-bit key.

    Both are 64-bit integers; each step is a bijection of 64 bits, so that for one seed no two sites share a key.
    """
    return _mix(_mix((seed + 0x9E3779B97F4A7C15) & MASK_64) ^ (site & MASK_64))


def build_site(name: str) -> int:
    """Give the 64-bit site of a linear layer from its full module name; independent of its place in the model."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def _mix(z: int) -> int:
    # Variant 13 of David Stafford's 64-bit mixers (2011), the finalizer of SplitMix64.
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK_64
    return z ^ (z >> 31)
