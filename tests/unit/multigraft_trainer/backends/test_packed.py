"""What a packed microbatch must be, checked before it can train on the wrong rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from builders.packed_case import make_packed, make_sample
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.backends.packed import PackedMicrobatch, PackedSample, check_packed


def _packed() -> PackedMicrobatch:
    return make_packed([(0, [(make_sample(5), 0), (make_sample(3), 1)]), (-1, []), (1, [(make_sample(4), 0)])])


def _with_segment(index: int, **change: Any) -> PackedMicrobatch:
    packed = _packed()
    segments = list(packed.segments)
    segments[index] = replace(segments[index], **change)
    return replace(packed, segments=tuple(segments))


def test_a_sound_microbatch_passes() -> None:
    check_packed(_packed(), 256)
    check_packed(make_packed([]), 256)


@pytest.mark.parametrize("token", [256, -1])
def test_A17_ids_outside_the_embedding(token: int) -> None:
    packed = _packed()
    packed.input_ids[2] = token
    with pytest.raises(RefusalError, match="the embedding has 256 rows") as caught:
        check_packed(packed, 256)
    assert caught.value.reason is Reason.TOKEN_OUT_OF_RANGE


def test_A17_target_ids_outside_the_embedding() -> None:
    ids = torch.full((6,), 300)
    with pytest.raises(RefusalError, match="the embedding has 256 rows"):
        check_packed(_with_segment(0, target_ids=ids), 256)


@pytest.mark.parametrize(
    "packed, message",
    [
        (replace(_packed(), positions=torch.arange(3)), "positions: got 3"),
        (_with_segment(2, start=7), r"segment \[7, 12\): want start 8"),
        (_with_segment(2, start=9), r"segment \[9, 12\): want start 8"),
        (replace(_packed(), segments=_packed().segments[:1]), "segments end at token 8, want 12"),
        (_with_segment(0, samples=(PackedSample(0, 5, 0), PackedSample(6, 8, 1))), r"sample \[6, 8\): want start 5"),
        (_with_segment(0, samples=(PackedSample(0, 5, 0),)), "samples end at token 5, want 8"),
        (_with_segment(2, target_ids=torch.zeros(1).long()), "target_ids: got 1"),
        (_with_segment(2, target_positions=torch.tensor([7, 8, 9])), r"target_positions: want all in \[8, 12\)"),
        (_with_segment(2, target_positions=torch.tensor([8, 9, 12])), r"target_positions: want all in \[8, 12\)"),
    ],
)
def test_refuses_what_does_not_fit(packed: PackedMicrobatch, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_packed(packed, 256)
