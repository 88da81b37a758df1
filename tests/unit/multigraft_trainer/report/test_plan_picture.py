from builders.run_result import make_horizon
from multigraft_trainer.report.plan_picture import MAX_MICROBATCHES, cut_horizons


def test_whole_plans_are_kept_while_they_fit():
    horizons = tuple(make_horizon(num_microbatches=50) for _ in range(5))
    assert len(cut_horizons(horizons)) == MAX_MICROBATCHES // 50


def test_the_first_plan_is_kept_even_if_it_is_long():
    assert len(cut_horizons((make_horizon(num_microbatches=500), make_horizon()))) == 1


def test_no_plan_gives_an_empty_picture():
    assert cut_horizons(()) == ()
