"""The backend against PEFT: losses and every gradient of every adapter, in whatever company."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders.fixed_table import FixedTable, Weights, make_options, make_weights
from builders.packed_case import Part, make_packed, make_sample, relative_error
from builders.peft_run import run_peft
from builders.tiny_base import FAMILIES, Family, make_tiny_base
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.slots import AdapterOptions
from multigraft_trainer.backends.transformers_backend import TransformersBackend, open_transformers_backend
from multigraft_trainer.intake.samples import TokenisedSample

transformers.utils.logging.disable_progress_bar()

CASES = Path(__file__).parents[3] / "cases"
RELATIVE = 1e-5  # fp32, two layers; measured 1e-7 to 2e-6


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def backend(base: Path) -> TransformersBackend:
    return open_transformers_backend(base, dtype=torch.float32, device="cpu")


def _targets(backend: TransformersBackend, *suffixes: str) -> list[str]:
    return [name for name in backend.linears if not suffixes or name.endswith(suffixes)]


def _mixed_options(backend: TransformersBackend) -> dict[int, AdapterOptions]:
    """Four adapters that differ in everything, in slots out of order with a gap."""
    return {
        5: make_options(_targets(backend), rank=1, alpha=0.5, seed=11),
        0: make_options(_targets(backend, "q_proj", "v_proj"), rank=3, alpha=1.0, dropout=0.05, seed=12),
        2: make_options(_targets(backend, "down_proj", "k_proj"), rank=8, alpha=16.0, dropout=0.3, seed=13),
        1: make_options(_targets(backend), rank=20, alpha=16.0, use_rslora=True, seed=14),
    }


def _attach(backend: TransformersBackend, options: Mapping[int, AdapterOptions]) -> FixedTable:
    adapters = {slot: (option, make_weights(option, backend.linears)) for slot, option in options.items()}
    table = FixedTable(backend.linears, adapters, dtype=backend.dtype)
    backend.attach(table)
    return table


def _grads(table: FixedTable, slot: int) -> Weights:
    return {name: (grads.a, grads.b) for name, grads in table.accumulators[slot].items()}


def _assert_grads(got: Weights, want: Weights, relative: float = RELATIVE) -> None:
    assert got.keys() == want.keys()
    # A gradient that is 0 in exact arithmetic (q and k of a sample of one token) is rounding noise in both.
    floor = 0.05 * max((grad.norm().item() for pair in want.values() for grad in pair), default=0.0)
    for name in want:
        for which, one, other in zip("AB", got[name], want[name], strict=True):
            error = (one.double() - other.double()).norm().item() / max(other.norm().item(), floor, 1e-30)
            assert error <= relative, f"d{which} of {name}: relative error {error:.2g}"


def _assert_equals_peft(
    base: Path,
    table: FixedTable,
    parts: Sequence[Part],
    losses: Sequence[float],
    weights: dict[int, float] | None = None,
    *,
    step: int = 0,
    slots: Sequence[int] | None = None,
) -> None:
    """Compare each adapter (or those in `slots`) with a run of PEFT on its samples alone."""
    for slot in slots if slots is not None else table.adapters:
        options, tensors = table.adapters[slot]
        samples = [pair for part_slot, pairs in parts if part_slot == slot for pair in pairs]
        weight = (weights or {}).get(slot, 1.0)
        want = run_peft(base, options, tensors, samples, loss_weight=weight, step=step)
        got = sum(loss for (part_slot, _), loss in zip(parts, losses, strict=True) if part_slot == slot)
        assert got == pytest.approx(want.loss, rel=1e-5)
        _assert_grads(_grads(table, slot), want.grads)


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
@pytest.mark.parametrize("family", FAMILIES)
def test_four_mixed_adapters_equal_peft(tmp_path: Path, family: Family, tied: bool) -> None:
    folder = make_tiny_base(tmp_path, family, tied=tied)
    backend = open_transformers_backend(folder, dtype=torch.float32, device="cpu")
    table = _attach(backend, _mixed_options(backend))
    parts = [
        (5, [(make_sample(9, seed=1), 0), (make_sample(31, num_supervised=3, seed=2), 1)]),
        (0, [(make_sample(17, seed=3), 4)]),
        (2, [(make_sample(2, seed=4), 9), (make_sample(25, seed=5), 2**31 + 5)]),
        (1, [(make_sample(14, num_supervised=6, seed=6), 3)]),
    ]
    weights = {5: 1 / 11, 0: 0.25, 2: 1.0, 1: 1 / 6}
    losses = backend.forward_backward(make_packed(parts, weights=weights, step=7))
    _assert_equals_peft(folder, table, parts, losses, weights, step=7)


def test_forward_loss_has_no_dropout_and_leaves_no_gradient(base: Path, backend: TransformersBackend) -> None:
    table = _attach(backend, {0: make_options(_targets(backend), dropout=0.3)})
    samples = [(make_sample(12), 0)]
    (got,) = backend.forward_loss(make_packed([(0, samples)]))
    want = run_peft(base, *table.adapters[0], samples, dropout=False)
    assert got == pytest.approx(want.loss, rel=1e-5)
    assert not any(grad.any() for pair in _grads(table, 0).values() for grad in pair)


def test_slot_minus_one_is_the_base_model(base: Path, backend: TransformersBackend) -> None:
    _attach(backend, {0: make_options(_targets(backend))})
    sample = make_sample(12)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    ids = torch.from_numpy(sample.input_ids.astype("int64"))
    with torch.no_grad():
        logits = model(ids[None]).logits[0]
    want = torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="sum").item()
    got = backend.forward_backward(make_packed([(-1, [(sample, 0)]), (0, [(make_sample(5), 0)])]))[0]
    assert got == pytest.approx(want, rel=1e-5)


def test_gradients_add_up_over_microbatches(base: Path, backend: TransformersBackend) -> None:
    table = _attach(backend, {0: make_options(_targets(backend))})
    first, second = (make_sample(9, seed=1), 0), (make_sample(13, seed=2), 1)
    losses = [backend.forward_backward(make_packed([(0, [pair])]))[0] for pair in (first, second)]
    _assert_equals_peft(base, table, [(0, [first, second])], [sum(losses)])


@pytest.mark.parametrize("plan", [[[0], [1], [2], [3]], [[0, 1], [2, 3]], [[0, 3], [1, 2]], [[0, 1, 2, 3]]], ids=str)
def test_C01_loss_and_gradient_do_not_depend_on_the_plan(
    base: Path, backend: TransformersBackend, plan: list[list[int]]
) -> None:
    counts = json.loads((CASES / "C01" / "check.json").read_text())["supervised_tokens"]
    samples = [(make_sample(count + 4, num_supervised=count, seed=count), row) for row, count in enumerate(counts)]
    weights = {0: 1 / sum(counts)}
    table = _attach(backend, {0: make_options(_targets(backend), dropout=0.05)})
    total = 0.0
    for rows in plan:
        total += backend.forward_backward(make_packed([(0, [samples[row] for row in rows])], weights=weights))[0]
    _assert_equals_peft(base, table, [(0, samples)], [total], weights)


def test_C04_a_microbatch_without_targets_contributes_exactly_nothing(backend: TransformersBackend) -> None:
    table = _attach(backend, {0: make_options(_targets(backend))})
    losses = backend.forward_backward(make_packed([(0, [(make_sample(8, num_supervised=0), 0)])]))
    assert losses == [0.0]
    assert not any(grad.any() for pair in _grads(table, 0).values() for grad in pair)


def test_C05_one_adapter_without_targets_beside_one_with(base: Path, backend: TransformersBackend) -> None:
    table = _attach(backend, {0: make_options(_targets(backend)), 1: make_options(_targets(backend), seed=2)})
    parts = [(0, [(make_sample(8, num_supervised=0), 0)]), (1, [(make_sample(9), 0)])]
    losses = backend.forward_backward(make_packed(parts))
    assert losses[0] == 0.0
    assert not any(grad.any() for pair in _grads(table, 0).values() for grad in pair)
    _assert_equals_peft(base, table, parts, losses)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_C07_neighbours_in_the_pack_change_nothing(tmp_path: Path, family: Family) -> None:
    backend = open_transformers_backend(make_tiny_base(tmp_path, family), dtype=torch.float32, device="cpu")
    a, b, c = (make_sample(20, seed=seed) for seed in range(3))
    options = make_options(_targets(backend), dropout=0.3)
    got = []
    for others in ([a], [c], []):
        table = _attach(backend, {0: options, 1: make_options(_targets(backend), seed=2)})
        parts: list[Part] = [(1, [(other, 0) for other in others]), (0, [(b, 5)])]
        losses = backend.forward_backward(make_packed(parts))
        got.append((losses[1], _grads(table, 0)))
    for loss, grads in got[1:]:
        assert loss == pytest.approx(got[0][0], rel=1e-6)
        _assert_grads(grads, got[0][1])


@pytest.mark.parametrize("family", FAMILIES)
def test_C13_checkpointing_changes_nothing(tmp_path: Path, family: Family) -> None:
    folder = make_tiny_base(tmp_path, family, layers=3)
    got = []
    for checkpointing in (False, True):
        backend = open_transformers_backend(
            folder, dtype=torch.float32, device="cpu", gradient_checkpointing=checkpointing
        )
        table = _attach(backend, _mixed_options(backend))
        parts = [(slot, [(make_sample(9 + slot, seed=slot), slot)]) for slot in table.adapters]
        losses = backend.forward_backward(make_packed(parts))
        got.append((losses, {slot: _grads(table, slot) for slot in table.adapters}))
    assert got[0][0] == got[1][0]
    for slot, grads in got[0][1].items():
        for name, pair in grads.items():
            assert all(grad.abs().max() > 0 for grad in pair), f"no gradient of {name} in slot {slot}"
            assert all(torch.equal(one, other) for one, other in zip(pair, got[1][1][slot][name], strict=True))


def test_C13_checkpointing_really_recomputes(base: Path) -> None:
    backend = open_transformers_backend(base, dtype=torch.float32, device="cpu", gradient_checkpointing=True)
    _attach(backend, {0: make_options(_targets(backend))})
    calls = []
    backend._model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    backend.forward_backward(make_packed([(0, [(make_sample(9), 0)])]))
    assert len(calls) == 2


def test_C14_C15_gradients_are_fp32_whatever_the_base(base: Path) -> None:
    exact = open_transformers_backend(base, dtype=torch.float32, device="cpu")
    samples = [(make_sample(40, seed=3), 0)]
    weights = {0: 1e-6}  # as in a global batch of a million supervised tokens: under fp16's smallest number
    reference = _attach(exact, {0: make_options(_targets(exact))})
    exact.forward_backward(make_packed([(0, samples)], weights=weights))
    for dtype, tolerance in ((torch.bfloat16, 0.1), (torch.float16, 0.02)):
        backend = open_transformers_backend(base, dtype=dtype, device="cpu")
        table = _attach(backend, {0: make_options(_targets(backend))})
        backend.forward_backward(make_packed([(0, samples)], weights=weights))
        for name, pair in _grads(table, 0).items():
            for grad, want in zip(pair, _grads(reference, 0)[name], strict=True):
                assert grad.dtype == torch.float32
                assert relative_error(grad, want) < tolerance


def test_C16_every_layer_of_every_adapter_gets_a_gradient(tmp_path: Path) -> None:
    backend = open_transformers_backend(make_tiny_base(tmp_path, layers=3), dtype=torch.float32, device="cpu")
    table = _attach(backend, {slot: make_options(_targets(backend), seed=slot) for slot in (0, 1)})
    backend.forward_backward(make_packed([(slot, [(make_sample(9), 0)]) for slot in (0, 1)]))
    for slot in (0, 1):
        grads = _grads(table, slot)
        assert len(grads) == 3 * 7
        assert all(grad.abs().max() > 0 for pair in grads.values() for grad in pair)


def test_C17_equal_jobs_get_equal_gradients(backend: TransformersBackend) -> None:
    options = make_options(_targets(backend), dropout=0.3)
    table = _attach(backend, dict.fromkeys((0, 1, 2), options))
    samples = [(make_sample(11, seed=1), 0), (make_sample(5, seed=2), 1)]
    losses = backend.forward_backward(make_packed([(slot, samples) for slot in (2, 0, 1)]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6) == pytest.approx(losses[2], rel=1e-6)
    for slot in (1, 2):
        _assert_grads(_grads(table, slot), _grads(table, 0))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 0.03), (torch.float16, 4e-3)])
def test_C18_C19_samples_of_1_2_and_64_tokens_in_one_microbatch(
    base: Path, dtype: torch.dtype, tolerance: float
) -> None:
    backend = open_transformers_backend(base, dtype=dtype, device="cpu")
    samples = [(make_sample(length, seed=length), length) for length in (1, 2, 64, 7)]
    _attach(backend, {0: make_options(_targets(backend))})
    (together,) = backend.forward_backward(make_packed([(0, samples)]))
    alone = sum(backend.forward_backward(make_packed([(0, [pair])]))[0] for pair in samples)
    assert np.isfinite(together)
    assert together == pytest.approx(alone, rel=tolerance)


def test_C20_only_the_last_turn_supervised(base: Path, backend: TransformersBackend) -> None:
    table = _attach(backend, {0: make_options(_targets(backend))})
    samples = []
    for row in range(3):
        supervised = np.zeros(120, dtype=bool)
        supervised[[20 * turn + 15 for turn in range(6)]] = row == 0  # six turns of one token each
        supervised[115:] = True
        ids = make_sample(120, seed=row).input_ids
        samples.append((TokenisedSample(row + 1, ids, supervised), row))
    losses = backend.forward_backward(make_packed([(0, samples)]))
    _assert_equals_peft(base, table, [(0, samples)], losses)


def test_E05_order_a_b_a_b_with_lengths_1_7_64_1(base: Path, backend: TransformersBackend) -> None:
    options = _mixed_options(backend)
    table = _attach(backend, {0: options[0], 1: options[1]})
    parts = [
        (slot, [(make_sample(length, seed=index), index)])
        for index, (slot, length) in enumerate([(0, 1), (1, 7), (0, 64), (1, 1)])
    ]
    losses = backend.forward_backward(make_packed(parts))
    _assert_equals_peft(base, table, parts, losses)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 33])
def test_E06_many_adapters_of_unequal_rank(base: Path, backend: TransformersBackend, count: int) -> None:
    options = {
        slot: make_options(
            _targets(backend, *(["q_proj", "up_proj"] if slot % 2 else ["v_proj"])),
            rank=1 + 5 * slot % 23,
            alpha=1.0 + slot,
            dropout=(0.0, 0.05, 0.3)[slot % 3],
            seed=slot,
        )
        for slot in range(count)
    }
    table = _attach(backend, options)
    parts = [(slot, [(make_sample(3 + slot % 5, seed=slot), slot)]) for slot in range(count)]
    losses = backend.forward_backward(make_packed(parts))
    _assert_equals_peft(base, table, parts, losses, slots=sorted({0, count // 2, count - 1}))
    for slot in range(count):
        alone = _attach(backend, {slot: options[slot]})
        (want,) = backend.forward_backward(make_packed([parts[slot]]))
        assert losses[slot] == pytest.approx(want, rel=1e-6)
        _assert_grads(_grads(table, slot), _grads(alone, slot))


def test_E08_ranks_alphas_targets_and_dropouts_of_ones_own(base: Path, backend: TransformersBackend) -> None:
    table = _attach(
        backend,
        {
            0: make_options(_targets(backend, "q_proj"), rank=4, alpha=8.0, seed=1),
            1: make_options(_targets(backend), rank=16, alpha=16.0, dropout=0.1, seed=2),
            2: make_options(_targets(backend, "up_proj", "down_proj"), rank=12, alpha=1.0, seed=3),
        },
    )
    parts = [(slot, [(make_sample(9, seed=slot), slot)]) for slot in (0, 1, 2)]
    losses = backend.forward_backward(make_packed(parts))
    _assert_equals_peft(base, table, parts, losses)


def test_F06_empty_segments_and_empty_microbatches(base: Path, backend: TransformersBackend) -> None:
    table = _attach(backend, {0: make_options(_targets(backend)), 1: make_options(_targets(backend), seed=2)})
    assert backend.forward_backward(make_packed([])) == []
    assert backend.forward_backward(make_packed([(0, [])])) == [0.0]
    parts: list[Part] = [(1, []), (0, [(make_sample(6), 0)]), (1, [])]
    losses = backend.forward_backward(make_packed(parts))
    _assert_equals_peft(base, table, parts, losses)


def test_a_neighbour_of_nan_changes_no_bit(backend: TransformersBackend) -> None:
    options = {0: make_options(_targets(backend), dropout=0.05), 1: make_options(_targets(backend), seed=2)}
    parts = [(0, [(make_sample(9), 0)]), (1, [(make_sample(33), 0)]), (0, [(make_sample(5), 1)])]
    clean = _attach(backend, options)
    want = backend.forward_backward(make_packed(parts))
    broken = _attach(backend, options)
    for name in backend.linears:
        broken.stacked_a(name)[1] = float("inf")
    got = backend.forward_backward(make_packed(parts))
    assert np.isnan(got[1])
    assert (got[0], got[2]) == (want[0], want[2])
    for name, pair in _grads(broken, 0).items():
        assert all(torch.equal(one, other) for one, other in zip(pair, _grads(clean, 0)[name], strict=True))


def test_slot_and_order_of_segments_do_not_matter(backend: TransformersBackend) -> None:
    options = list(_mixed_options(backend).values())
    samples = [[(make_sample(7 + index, seed=index), index)] for index in range(4)]
    results = []
    for slots, order in (([0, 1, 2, 3], [0, 1, 2, 3]), ([6, 3, 0, 9], [2, 0, 3, 1])):
        table = _attach(backend, dict(zip(slots, options, strict=True)))
        losses = backend.forward_backward(make_packed([(slots[i], samples[i]) for i in order]))
        by_index = dict(zip(order, losses, strict=True))
        results.append([(by_index[i], _grads(table, slots[i])) for i in range(4)])
    for (loss, grads), (other_loss, other_grads) in zip(*results, strict=True):
        assert loss == pytest.approx(other_loss, rel=1e-6)
        _assert_grads(grads, other_grads)


def test_A17_an_id_outside_the_embedding_is_refused_before_the_model_runs(backend: TransformersBackend) -> None:
    _attach(backend, {0: make_options(_targets(backend))})
    sample = make_sample(6)
    sample.input_ids[3] = 512
    with pytest.raises(RefusalError, match="the embedding has 512 rows") as caught:
        backend.forward_backward(make_packed([(0, [(sample, 0)])]))
    assert caught.value.reason is Reason.TOKEN_OUT_OF_RANGE


def test_the_base_model_is_never_changed_and_never_gets_a_gradient(base: Path, backend: TransformersBackend) -> None:
    _attach(backend, {0: make_options(_targets(backend))})
    before = {name: value.clone() for name, value in backend._model.state_dict().items()}
    backend.forward_backward(make_packed([(0, [(make_sample(9), 0)])]))
    after = backend._model.state_dict()
    assert before.keys() == after.keys() == transformers.AutoModelForCausalLM.from_pretrained(base).state_dict().keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(parameter.grad is None for parameter in backend._model.parameters())


def test_names_slots_without_a_pool(base: Path) -> None:
    backend = open_transformers_backend(base, dtype=torch.float32, device="cpu")
    with pytest.raises(RuntimeError, match="no slot pool is attached"):
        backend.forward_backward(make_packed([(0, [(make_sample(4), 0)])]))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.lists(
        st.tuples(st.integers(-1, 2), st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=3)), max_size=5
    )
)
def test_any_microbatch_gives_each_adapter_what_it_gets_alone(
    backend: TransformersBackend, order: list[tuple[int, list[tuple[int, bool]]]]
) -> None:
    options = [
        make_options(_targets(backend, "q_proj", "down_proj"), rank=3, dropout=0.3, seed=1),
        make_options(_targets(backend), rank=5, seed=2),
        make_options(_targets(backend, "v_proj"), rank=1, dropout=0.05, seed=3),
    ]
    parts: list[Part] = []
    for i, (slot, lengths) in enumerate(order):
        samples = [
            (make_sample(length, num_supervised=None if full else 0, seed=10 * i + j), 5 * i + j)
            for j, (length, full) in enumerate(lengths)
        ]
        parts.append((slot, samples))
    together = _attach(backend, dict(enumerate(options)))
    losses = backend.forward_backward(make_packed(parts))
    for slot in range(3):
        alone = _attach(backend, {slot: options[slot]})
        own = [index for index, (part_slot, _) in enumerate(parts) if part_slot == slot]
        want = [backend.forward_backward(make_packed([parts[index]]))[0] for index in own]
        assert [losses[index] for index in own] == pytest.approx(want, rel=1e-5)
        _assert_grads(_grads(together, slot), _grads(alone, slot))


def test_a_microbatch_that_fails_half_way_leaves_nothing_behind(base: Path) -> None:
    backend = open_transformers_backend(base, dtype=torch.float32, device="cpu", gradient_checkpointing=True)
    table = _attach(backend, {0: make_options(_targets(backend), dropout=0.3)})
    microbatch = make_packed([(0, [(make_sample(9), 0)])])
    want = backend.forward_backward(microbatch)
    expected = {name: (a.clone(), b.clone()) for name, (a, b) in _grads(table, 0).items()}
    table.zero_grads()

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("made up")

    hook = backend._model.model.layers[1].mlp.register_forward_hook(fail)
    with pytest.raises(torch.OutOfMemoryError, match="made up") as caught:
        backend.forward_backward(microbatch)
    hook.remove()
    assert not any(grad.any() for pair in _grads(table, 0).values() for grad in pair)
    assert backend.forward_backward(microbatch) == want
    _assert_grads(_grads(table, 0), expected, 0.0)
    assert caught.value is not None  # held until here, as a logger or a debugger would
