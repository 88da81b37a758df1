"""Work on the host for the next microbatch, done while the device is busy, changes no result."""

from __future__ import annotations

import pytest
import torch

from builders.fixed_table import FixedTable, make_options, make_weights
from builders.packed_case import make_packed, make_sample
from builders.tiny_base import VOCAB_SIZE, make_tiny_base
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.backends.transformers_backend import TransformersBackend, open_transformers_backend

FIRST = [(0, [(make_sample(9, seed=1), 0)])]
SECOND = [(1, [(make_sample(5, seed=2), 0)]), (0, [(make_sample(7, seed=3), 1)])]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> TransformersBackend:
    return open_transformers_backend(make_tiny_base(tmp_path_factory.mktemp("base")), dtype=torch.float32, device="cpu")


def _attach(backend: TransformersBackend) -> FixedTable:
    names = list(backend.linears)
    options = {0: make_options(names, rank=3, dropout=0.1, seed=1), 1: make_options(names, rank=5, seed=2)}
    adapters = {slot: (option, make_weights(option, backend.linears)) for slot, option in options.items()}
    table = FixedTable(backend.linears, adapters, dtype=backend.dtype)
    backend.attach(table)
    return table


def _assert_equal(got: FixedTable, want: FixedTable) -> None:
    for slot, modules in want.accumulators.items():
        for name, grads in modules.items():
            assert torch.equal(got.accumulators[slot][name].a, grads.a)
            assert torch.equal(got.accumulators[slot][name].b, grads.b)


def test_a_prepared_microbatch_gives_the_same_bits(backend: TransformersBackend) -> None:
    want_table = _attach(backend)
    want = [backend.forward_backward(make_packed(parts)) for parts in (FIRST, SECOND)]
    got_table = _attach(backend)
    following = make_packed(SECOND)
    got = [backend.forward_backward(make_packed(FIRST), meanwhile=lambda: backend.prepare(following))]
    got.append(backend.forward_backward(following))
    assert got == want
    _assert_equal(got_table, want_table)


def test_what_was_prepared_is_not_used_for_another_microbatch(backend: TransformersBackend) -> None:
    want_table = _attach(backend)
    want = backend.forward_backward(make_packed(FIRST))
    got_table = _attach(backend)
    backend.prepare(make_packed(SECOND))
    assert backend.forward_backward(make_packed(FIRST)) == want
    _assert_equal(got_table, want_table)


def test_an_evaluation_drops_nothing_though_training_was_prepared(backend: TransformersBackend) -> None:
    _attach(backend)
    want = backend.forward_loss(make_packed(FIRST))
    packed = make_packed(FIRST)
    backend.prepare(packed)
    assert backend.forward_loss(packed) == want


def test_a_new_table_voids_what_was_prepared(backend: TransformersBackend) -> None:
    _attach(backend)
    packed = make_packed(SECOND)
    backend.prepare(packed)
    table = _attach(backend)
    backend.forward_backward(packed)
    assert all(bool(grads.a.any() or grads.b.any()) for grads in table.accumulators[1].values())


def test_a_bad_microbatch_is_refused_when_it_runs_not_when_it_is_prepared(backend: TransformersBackend) -> None:
    _attach(backend)
    packed = make_packed(FIRST)
    packed.input_ids[0] = VOCAB_SIZE
    backend.prepare(packed)
    with pytest.raises(RefusalError) as caught:
        backend.forward_backward(packed)
    assert caught.value.reason == Reason.TOKEN_OUT_OF_RANGE


def test_meanwhile_is_called_once_after_the_gradients_were_asked_for(backend: TransformersBackend) -> None:
    table = _attach(backend)
    seen: list[bool] = []

    def look() -> None:
        seen.append(any(bool(grads.b.any()) for grads in table.accumulators[0].values()))

    backend.forward_backward(make_packed(FIRST), meanwhile=look)
    assert seen == [True]
