"""Local validation and the API server say the same: one table, both sides.

The server's side runs Kubernetes' own packages (tests/kube/crdcheck) on the generated CRDs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.crdcheck import Answer, Request, ask
from builders.manifest_table import ROWS, UPDATES, Row, UpdateRow
from multigraft.api.updates import find_forbidden_changes
from multigraft.manifests.collection import Manifests
from multigraft.manifests.load import load_manifests


def load_text(folder: Path, text: str) -> Manifests:
    file = folder / "manifest.yaml"
    file.write_text(text, encoding="utf-8")
    return load_manifests([file])


@pytest.fixture(scope="module")
def server_answers() -> dict[str, Answer]:
    creates = {row.id: Request(row.text) for row in ROWS}
    updates = {row.id: Request(row.new, row.old) for row in UPDATES}
    asked = creates | updates
    return dict(zip(asked, ask(list(asked.values())), strict=True))


def test_every_row_has_its_own_id() -> None:
    ids = [row.id for row in (*ROWS, *UPDATES)]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_local_validation_accepts_or_names_the_field(row: Row, tmp_path: Path) -> None:
    found = load_text(tmp_path, row.text)
    got = [str(problem) for problem in found.problems]
    if row.field is None:
        assert got == []
        assert len(found.jobs) + len(found.pools) == 1
        return
    named = [
        p for p in found.problems if p.field == row.field or p.field.startswith((f"{row.field}.", f"{row.field}["))
    ]
    assert named, got
    assert any(row.says in problem.message for problem in named), got
    assert len({problem.field for problem in found.problems}) == len(found.problems), "one message per field"
    assert found.jobs == []
    assert found.pools == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_api_server_accepts_or_names_the_field(row: Row, server_answers: dict[str, Answer]) -> None:
    answer = server_answers[row.id]
    assert answer.accepted == (row.field is None or row.is_local), answer.problems
    kinds = {problem["type"] for problem in answer.problems}
    if (
        row.field is not None and not row.is_local and kinds.isdisjoint({"Decode", "NotFound"})
    ):  # those two end before any field is seen
        assert answer.names(row.field), answer.problems


@pytest.mark.parametrize("row", UPDATES, ids=lambda row: row.id)
def test_forbidden_changes_are_named_locally(row: UpdateRow, tmp_path: Path) -> None:
    (old,), (new,) = (
        [*found.jobs, *found.pools] for found in (load_text(tmp_path, row.old), load_text(tmp_path, row.new))
    )
    got = {field for field, _ in find_forbidden_changes(old.spec, new.spec)}
    assert got == set(row.fields)


@pytest.mark.parametrize("row", UPDATES, ids=lambda row: row.id)
def test_forbidden_changes_are_named_by_the_api_server(row: UpdateRow, server_answers: dict[str, Answer]) -> None:
    answer = server_answers[row.id]
    assert answer.accepted == (not row.fields), answer.problems
    assert {problem["field"] for problem in answer.problems} == set(row.fields)
