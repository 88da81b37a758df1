"""Routes: who runs where, with which dropout, and that neighbours do not show."""

from __future__ import annotations

import pytest
import torch

from builders.fixed_table import FixedTable, make_options, make_weights
from builders.packed_case import make_packed, make_sample
from multigraft_kernels.counter_dropout.reference import build_multiplier
from multigraft_trainer.adapters.slots import AdapterOptions, LinearShape
from multigraft_trainer.backends.routing import build_routes

CPU = torch.device("cpu")
LINEARS = {name: LinearShape(48, 80) for name in ("q", "k", "v")}


def _table(options: dict[int, AdapterOptions]) -> FixedTable:
    return FixedTable(LINEARS, {slot: (option, make_weights(option, LINEARS)) for slot, option in options.items()})


def test_a_layer_sees_the_segments_of_the_adapters_that_target_it() -> None:
    table = _table({0: make_options(["q"], rank=3), 4: make_options(["q", "v"], rank=8, alpha=4.0)})
    packed = make_packed(
        [(4, [(make_sample(5), 0)]), (-1, [(make_sample(3), 0)]), (0, [(make_sample(2), 0)])], weights={4: 0.5}
    )
    routes = build_routes(packed, table, CPU, training=True)
    assert routes.keys() == {"q", "v"}
    got = [(s.slot, s.start, s.end, s.rank, s.scaling, s.grad_weight) for s in routes["q"].segments]
    assert got == [(4, 0, 5, 8, 0.5, 0.5), (0, 8, 10, 3, 16 / 3, 1.0)]
    assert [segment.slot for segment in routes["v"].segments] == [4]
    assert routes["q"].grads is not None
    assert routes["q"].grads[1].a is table.accumulators[0]["q"].a


def test_evaluation_has_neither_dropout_nor_gradients() -> None:
    table = _table({0: make_options(["q"], dropout=0.5)})
    routes = build_routes(make_packed([(0, [(make_sample(5), 0)])]), table, CPU, training=False)
    assert routes["q"].dropout is None
    assert routes["q"].grads is None


def test_no_dropout_table_where_nobody_drops() -> None:
    table = _table({0: make_options(["q", "k"]), 1: make_options(["k", "v"], dropout=0.5)})
    parts = [(slot, [(make_sample(5), 0)]) for slot in (0, 1)]
    routes = build_routes(make_packed(parts), table, CPU, training=True)
    assert routes["q"].dropout is None
    assert routes["k"].dropout is not None
    assert routes["v"].dropout is not None
    assert routes["k"].dropout[1].thresholds.tolist() == [0, 32768]
    assert routes["v"].dropout[1].thresholds.tolist() == [-1, 32768]


def test_empty_segments_have_no_route() -> None:
    table = _table({0: make_options(["q"], dropout=0.5)})
    assert build_routes(make_packed([(0, []), (-1, [(make_sample(4), 0)])]), table, CPU, training=True) == {}


def test_D10_masks_depend_on_seed_layer_step_draw_and_position_alone() -> None:
    options = make_options(["q", "k"], dropout=0.3, seed=7)
    sample = (make_sample(9), 12)

    def mask(slot: int, parts: list, *, layer: str = "q", step: int = 3, rows: slice) -> torch.Tensor:
        others = {9: make_options(["q"], dropout=0.05, seed=8)}
        routes = build_routes(make_packed(parts, step=step), _table({slot: options, **others}), CPU, training=True)
        dropout = routes[layer].dropout
        assert dropout is not None
        return build_multiplier(*dropout, 48)[rows]

    alone = mask(0, [(0, [sample])], rows=slice(0, 9))
    neighbour = [(make_sample(4), 1)]
    together = mask(3, [(9, neighbour), (3, [(make_sample(6), 2), sample])], rows=slice(10, 19))
    assert torch.equal(alone, together)
    assert not torch.equal(alone, mask(0, [(0, [sample])], step=4, rows=slice(0, 9)))
    assert not torch.equal(alone, mask(0, [(0, [(sample[0], 13)])], rows=slice(0, 9)))
    assert not torch.equal(alone, mask(0, [(0, [sample])], layer="k", rows=slice(0, 9)))


def test_a_free_slot_is_an_error() -> None:
    with pytest.raises(KeyError):
        build_routes(make_packed([(2, [(make_sample(4), 0)])]), _table({0: make_options(["q"])}), CPU, training=True)
