"""Sample lengths of the three benchmark sets: log-normal, clipped at 4,096 tokens.

The sigmas are fits to real texts (docstrings, chats, manual pages; clipped at 4,096). The means are those of the
published baselines, 558, 837 and 1,838 tokens, about those of XSum, CNN/DM and WikiSum; mu follows from mean and sigma.
They are real data of similar average length with heavier tails, not those datasets.
"""

from __future__ import annotations

import numpy as np

LONGEST = 4096
SHORTEST = 16

# name: (mu, sigma) of ln(tokens)
LENGTH_SETS = {
    "xsum-like": (5.872, 0.97),
    "cnndm-like": (5.878, 1.54),
    "wikisum-like": (7.308, 0.86),
}


def draw_lengths(name: str, count: int, seed: int) -> list[int]:
    """Draw `count` lengths in tokens."""
    mu, sigma = LENGTH_SETS[name]
    lengths = np.random.default_rng(seed).lognormal(mu, sigma, count)
    return np.clip(lengths.round(), SHORTEST, LONGEST).astype(int).tolist()
