"""Philox against the published vectors of Random123, and keys that do not collide."""

from __future__ import annotations

import numpy as np
import pytest

from multigraft_kernels.philox import build_key, build_site, philox4x32

# Lines "philox4x32 ROUNDS counter[4] key[2] want[4]" of Random123's kat_vectors: zeros, ones, digits of pi.
KNOWN_ANSWERS = """
7 00000000 00000000 00000000 00000000 00000000 00000000 5f6fb709 0d893f64 4f121f81 4f730a48
7 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 5207ddc2 45165e59 4d8ee751 8c52f662
7 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 4dfccaba 190a87f0 c47362ba b6b5242a
10 00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8
10 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd
10 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1
"""


@pytest.mark.parametrize("line", KNOWN_ANSWERS.strip().splitlines())
def test_equals_random123(line: str) -> None:
    rounds, *words = line.split()
    numbers = np.array([int(word, 16) for word in words], dtype=np.uint64)
    got = philox4x32(numbers[:4], numbers[4:6], int(rounds))
    assert got.tolist() == numbers[6:].tolist()


def test_keys_of_neighbouring_seeds_and_layers_differ() -> None:
    sites = [build_site(f"model.layers.{layer}.mlp.up_proj") for layer in range(80)]
    keys = {build_key(seed, site) for seed in range(50) for site in sites}
    assert len(keys) == 50 * 80


def test_key_is_fixed_for_ever() -> None:
    # A changed mix would change the rest of every run that is resumed from a checkpoint of an older version.
    site = build_site("model.layers.0.self_attn.q_proj")
    assert site == 0xE477A328DEA3156C
    assert build_key(42, site) == 0xF6CDF4D52D092FE2
