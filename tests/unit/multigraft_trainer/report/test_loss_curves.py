import itertools
import math

from builders.run_result import make_job, make_step
from multigraft_trainer.report.loss_curves import MAX_POINTS, thin_history


def test_a_long_history_is_thinned_evenly():
    job = make_job(history=tuple(make_step(step) for step in range(1, 25_001)))
    steps, losses = thin_history(job)
    assert MAX_POINTS / 2 < len(steps) == len(losses) <= MAX_POINTS
    assert len({b - a for a, b in itertools.pairwise(steps)}) == 1


def test_a_loss_that_is_not_finite_leaves_a_gap_and_not_a_zero():
    steps, losses = thin_history(make_job(history=(make_step(1), make_step(2, loss=None))))
    assert steps == [1, 2]
    assert math.isnan(losses[1])


def test_no_history_is_no_points():
    assert thin_history(make_job(history=())) == ([], [])
