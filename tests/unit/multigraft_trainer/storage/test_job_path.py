from __future__ import annotations

import pytest

from multigraft_trainer.storage.job_path import build_job_path

LONG = "x" * 75


@pytest.mark.parametrize(
    "job",
    ["default/a", "team/team-a.support-v1.2", "a/" + "x" * 253, "n" * 63 + "/0", "0/" + "y." * 126 + "z"],
)
def test_B13_every_legal_name_is_its_own_path(job: str) -> None:
    got = build_job_path(job)

    assert str(got) == job
    assert all(len(part.encode()) <= 255 for part in got.parts)


def test_H01_long_names_with_a_common_beginning_do_not_collide() -> None:
    assert build_job_path(f"a/{LONG}abc") != build_job_path(f"a/{LONG}abd")
    assert build_job_path("a/b.c") != build_job_path("a.b/c".replace("a.b", "a-b"))


@pytest.mark.parametrize(
    "job",
    [
        "",
        "a",
        "/a",
        "a/",
        "../a",
        "a/..",
        "a/.b",
        "a/b..c",
        "a.b/c",
        "A/b",
        "a/B",
        "a/b\n",
        "a/b\0",
        "a/-b",
        "a/b c",
        "n" * 64 + "/b",
        "a/" + "x" * 254,
    ],
)
def test_anything_else_is_refused(job: str) -> None:
    with pytest.raises(ValueError, match="want namespace/name"):
        build_job_path(job)
