from multigraft_trainer.report.colours import HATCHES, PALETTE, choose_looks


def test_looks_differ_until_palette_and_hatches_are_used_up():
    jobs = [f"default/job-{i}" for i in range(len(PALETTE) * len(HATCHES))]
    assert len(set(choose_looks(jobs).values())) == len(jobs)


def test_a_job_looks_the_same_in_every_picture():
    assert choose_looks(["a", "b"]) == choose_looks(["a", "b"])
