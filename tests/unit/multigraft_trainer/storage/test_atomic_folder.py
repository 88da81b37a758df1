from __future__ import annotations

from pathlib import Path

import pytest

from builders.dying_os import DiedError, dying_os
from multigraft_trainer.storage import atomic_folder
from multigraft_trainer.storage.atomic_folder import (
    discard_folder,
    exchange_folders,
    remove_leftovers,
    replace_folder,
    temporary_folder,
)
from multigraft_trainer.storage.durable_files import write_new_file


def fill_with(text: str):
    def fill(folder: Path) -> None:
        write_new_file(folder / "a", text.encode())
        write_new_file(folder / "b", text.encode())

    return fill


def read(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.iterdir())]


@pytest.fixture(params=[True, False], ids=["the kernel can exchange", "it cannot"])
def can_exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(atomic_folder, "exchange_folders", lambda *_: False)
    return bool(request.param)


@pytest.mark.usefixtures("can_exchange")
@pytest.mark.parametrize("before", ["nothing", "an empty folder", "a full folder"])
def test_what_was_there_is_replaced_whole(tmp_path: Path, before: str) -> None:
    final = tmp_path / "final"
    if before != "nothing":
        final.mkdir()
    if before == "a full folder":
        (final / "old").write_text("old")

    replace_folder(final, fill_with("new"))

    assert read(final) == ["new", "new"]
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


@pytest.mark.usefixtures("can_exchange")
def test_a_failure_keeps_what_was_there(tmp_path: Path) -> None:
    final = tmp_path / "final"
    replace_folder(final, fill_with("old"))

    def fail(folder: Path) -> None:
        fill_with("new")(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_folder(final, fail)

    assert read(final) == ["old", "old"]
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_death_at_any_call_leaves_the_old_folder_or_the_new(tmp_path: Path) -> None:
    seen, died, die_at = set(), True, 0
    while died:
        final = tmp_path / str(die_at) / "final"
        final.parent.mkdir()
        replace_folder(final, fill_with("old"))
        with dying_os(die_at):
            try:
                replace_folder(final, fill_with("new"))
                died = False
            except DiedError:
                die_at += 1
        seen.add(tuple(read(final)))
        remove_leftovers(final.parent)
        assert [path.name for path in final.parent.iterdir()] == ["final"]

    assert seen == {("old", "old"), ("new", "new")}


@pytest.mark.parametrize("what", ["a link", "a dangling link", "a file"])
def test_K11_a_link_or_a_file_is_not_replaced(tmp_path: Path, what: str) -> None:
    final, target = tmp_path / "final", tmp_path / "target"
    if what == "a file":
        final.write_text("x")
    else:
        final.symlink_to(target)
        if what == "a link":
            target.mkdir()

    with pytest.raises(OSError, match="is a link or a file"):
        replace_folder(final, fill_with("new"))

    assert {path.name for path in tmp_path.iterdir()} == {"final", *(["target"] if what == "a link" else [])}


def test_two_folders_swap_names(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)

    if not exchange_folders(tmp_path / "first", tmp_path / "second"):
        pytest.skip("this file system cannot exchange two names")

    assert read(tmp_path / "first") == ["second"]
    assert read(tmp_path / "second") == ["first"]


def test_an_exchange_with_nothing_is_the_systems_error(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()

    with pytest.raises(FileNotFoundError):
        exchange_folders(tmp_path / "first", tmp_path / "second")


def test_a_discarded_folder_is_gone(tmp_path: Path) -> None:
    replace_folder(tmp_path / "final", fill_with("x"))
    discard_folder(tmp_path / "final")

    assert list(tmp_path.iterdir()) == []


def test_leftovers_go_and_everything_else_stays(tmp_path: Path) -> None:
    for name in (".tmp-1", ".trash-2", "tmp-3", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
    (tmp_path / ".tmp-file").write_text("x")
    (tmp_path / ".tmp-link").symlink_to(tmp_path / "mine")

    remove_leftovers(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {"tmp-3", "mine"}
    assert read(tmp_path / "mine") == ["x"]


def test_a_temporary_folder_that_was_renamed_away_stays(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as temp:
        temp.rename(tmp_path / "final")

    assert (tmp_path / "final").is_dir()
