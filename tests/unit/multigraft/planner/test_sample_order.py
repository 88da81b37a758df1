from __future__ import annotations

import numpy as np
import pytest

from multigraft.planner.sample_order import SampleOrder, build_epoch_order


def test_the_shuffle_is_pinned_so_that_no_library_version_changes_a_running_job() -> None:
    got = [build_epoch_order(42, epoch, 10).tolist() for epoch in (0, 1)]
    assert got == [[6, 3, 2, 9, 0, 8, 1, 7, 4, 5], [7, 0, 8, 5, 1, 6, 9, 2, 4, 3]]


@pytest.mark.parametrize("num_samples, batch", [(1, 1), (1, 8), (3, 8), (10, 4), (8, 8), (9, 8), (1000, 7)])
def test_every_epoch_visits_every_sample_once_and_no_global_batch_spans_two_epochs(
    num_samples: int, batch: int
) -> None:
    order = SampleOrder(7, num_samples, batch)
    for epoch in range(3):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        rows = [row for step in steps for row in order.rows(step)]
        assert sorted(rows) == list(range(num_samples))
        assert rows == build_epoch_order(7, epoch, num_samples).tolist()
        assert {order.epoch_of(step) for step in steps} == {epoch}


def test_draws_count_up_over_epochs_without_gap_or_repeat() -> None:
    order = SampleOrder(1, 10, 4)
    draws = [draw for step in range(9) for draw in order.draws(step)]
    assert draws == list(range(30))
    assert [len(order.draws(step)) for step in range(4)] == [4, 4, 2, 4]


def test_A20_identical_rows_are_each_visited_once_per_epoch_also_after_a_resume() -> None:
    lengths = [10, 10, 12, 10, 10, 12, 10, 12]  # rows 2, 5, 7 are equal
    before = SampleOrder(42, len(lengths), 5).rows(0)
    resumed = SampleOrder(42, len(lengths), 5)
    assert sorted(before + resumed.rows(1)) == list(range(8))


def test_D07_a_resume_in_the_middle_of_an_epoch_goes_on_in_the_same_shuffle() -> None:
    seen = [SampleOrder(3, 16, 6).row(draw) for draw in range(6)]
    after = [SampleOrder(3, 16, 6).row(draw) for draw in range(6, 16)]
    assert sorted(seen + after) == list(range(16))


def test_D08_epoch_k_has_the_same_order_after_a_restart_at_each_epoch_end() -> None:
    whole = SampleOrder(5, 12, 5)
    uninterrupted = [whole.row(draw) for draw in range(36)]
    restarted = [SampleOrder(5, 12, 5).row(draw) for draw in range(36)]
    assert restarted == uninterrupted
    assert len({tuple(uninterrupted[e * 12 : (e + 1) * 12]) for e in range(3)}) == 3


def test_the_order_depends_on_seed_epoch_and_number_of_samples_alone() -> None:
    want = build_epoch_order(1, 0, 50).tolist()
    assert SampleOrder(1, 50, 7).rows(0) == want[:7] == SampleOrder(1, 50, 50).rows(0)[:7]
    others = [build_epoch_order(2, 0, 50), build_epoch_order(1, 1, 50), build_epoch_order(1, 0, 51)]
    assert all(other.tolist()[:50] != want for other in others)


def test_the_largest_seed_and_a_far_epoch_are_allowed() -> None:
    order = SampleOrder(2**63 - 1, 5, 2)
    assert sorted(order.row(5 * 10**9 + i) for i in range(5)) == list(range(5))


def test_first_places_are_near_uniform_over_seeds() -> None:
    counts = np.bincount([build_epoch_order(seed, 0, 8)[0] for seed in range(4000)], minlength=8)
    assert counts.min() > 400
    assert counts.max() < 600


@pytest.mark.parametrize(
    "max_steps, num_train_epochs, want",
    [(7, None, 7), (None, 1, 3), (None, 4, 12), (1, None, 1)],
    ids=["steps are taken as they are", "one epoch", "four epochs", "one step"],
)
def test_steps_of_the_whole_run(max_steps: int | None, num_train_epochs: int | None, want: int) -> None:
    assert SampleOrder(0, 10, 4).count_steps(max_steps=max_steps, num_train_epochs=num_train_epochs) == want


@pytest.mark.parametrize(
    "max_steps, num_train_epochs, words",
    [
        (None, None, "exactly one"),
        (3, 2, "exactly one"),
        (0, None, "maxSteps: got 0"),
        (None, -1, "numTrainEpochs: got -1"),
    ],
)
def test_a_run_without_one_valid_limit_is_refused(
    max_steps: int | None, num_train_epochs: int | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        SampleOrder(0, 10, 4).count_steps(max_steps=max_steps, num_train_epochs=num_train_epochs)


@pytest.mark.parametrize(
    "seed, num_samples, batch, words",
    [
        (-1, 1, 1, "seed: got -1"),
        (2**64, 1, 1, "seed: got"),
        (0, 0, 1, "num_samples: got 0"),
        (0, 1, 0, "global_batch_size: got 0"),
    ],
)
def test_an_order_that_cannot_be_is_refused(seed: int, num_samples: int, batch: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SampleOrder(seed, num_samples, batch)


def test_negative_steps_and_draws_are_refused() -> None:
    order = SampleOrder(0, 4, 2)
    with pytest.raises(ValueError, match="step: got -1"):
        order.draws(-1)
    with pytest.raises(ValueError, match="draw: got -1"):
        order.row(-1)


def test_a_global_batch_for_the_planner_carries_draws_and_lengths_of_their_rows() -> None:
    order = SampleOrder(42, 10, 4)
    lengths = np.arange(100, 110)
    batch = order.build_global_batch(2, lengths)
    assert batch.step == 2
    assert [(s.draw, s.num_tokens) for s in batch.samples] == [(8, 104), (9, 105)]
    with pytest.raises(ValueError, match="lengths: got 3 entries, allowed 10"):
        order.build_global_batch(0, [1, 2, 3])
