from __future__ import annotations

from pathlib import Path

import pytest

from builders.manifest_text import job_text, pool_text
from multigraft.api.reasons import Reason, RefusalError
from multigraft.manifests.collection import Manifests
from multigraft.manifests.load import load_manifests
from multigraft_trainer.local_run.pool_selection import select_pool


def load(folder: Path, *documents: str) -> Manifests:
    for number, text in enumerate(documents):
        (folder / f"{number}.yaml").write_text(text, encoding="utf-8")
    found = load_manifests([folder])
    assert not found.problems, found.problems
    return found


def pool(namespace: str, name: str = "tiny-pool") -> str:
    return pool_text(name=name, namespace=namespace)


def keys(selection: object) -> list[str]:
    return [job.key for job in selection.jobs]  # type: ignore[attr-defined]


@pytest.fixture
def two_teams(tmp_path: Path) -> Manifests:
    return load(
        tmp_path,
        pool("team-a"),
        pool("team-b"),
        pool("team-b", "big"),
        job_text(name="one", namespace="team-a"),
        job_text(name="two", namespace="team-b"),
        job_text(name="three", namespace="team-b", pool="poolRef: {name: big}"),
        job_text(name="four", namespace="team-b", pool="poolSelector: {}"),
        job_text(name="lost", namespace="team-b", pool="poolRef: {name: nowhere}"),
    )


@pytest.mark.parametrize(
    "name, want",
    [
        ("team-a/tiny-pool", ["team-a/one", "team-b/lost"]),
        ("team-b/tiny-pool", ["team-b/two", "team-b/four", "team-b/lost"]),
        ("big", ["team-b/three", "team-b/four", "team-b/lost"]),
    ],
    ids=["by namespace and name", "the same name in another namespace", "a name that is there once"],
)
def test_a_run_is_of_the_jobs_that_its_pool_can_take_and_of_those_that_none_can(
    two_teams: Manifests, name: str, want: list[str]
) -> None:
    selection = select_pool(two_teams, name)
    assert keys(selection) == want
    left_out = {note.partition(" ")[0] for note in selection.notes}
    assert left_out == {job.key for job in two_teams.jobs} - set(want)
    assert all(selection.pool.key in note for note in selection.notes)


@pytest.mark.parametrize("name", [None, "tiny-pool"])
def test_several_pools_are_listed_with_the_way_to_choose(two_teams: Manifests, name: str | None) -> None:
    with pytest.raises(RefusalError, match="--pool NAMESPACE/NAME") as caught:
        select_pool(two_teams, name)
    assert "team-a/tiny-pool, team-b/tiny-pool" in caught.value.message
    assert caught.value.reason is Reason.INVALID_SPEC


@pytest.mark.parametrize("name", ["team-c/tiny-pool", "tiny", "team-a/big"])
def test_a_pool_that_is_not_there_is_named_beside_those_that_are(two_teams: Manifests, name: str) -> None:
    with pytest.raises(RefusalError, match="team-b/big") as caught:
        select_pool(two_teams, name)
    assert caught.value.reason is Reason.POOL_NOT_FOUND


def test_a_pool_without_jobs_is_no_run(tmp_path: Path) -> None:
    found = load(tmp_path, pool("team-a"), pool("team-b"), job_text(namespace="team-b"))
    with pytest.raises(RefusalError, match="no AdapterJob is of pool team-a/tiny-pool"):
        select_pool(found, "team-a/tiny-pool")
