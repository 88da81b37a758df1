from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.durable_files import (
    hash_file,
    make_folders,
    make_root,
    make_temp_name,
    read_small_file,
    refuse_if_not_writable,
    replace_file,
    write_new_file,
    write_new_tensors,
)


def test_a_new_file_holds_all_bytes_though_the_system_takes_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:7]))

    write_new_file(tmp_path / "x", bytes(range(256)))

    assert (tmp_path / "x").read_bytes() == bytes(range(256))


@pytest.mark.parametrize("what", ["a file", "a link", "a dangling link"])
def test_a_new_file_never_goes_over_or_through_another(tmp_path: Path, what: str) -> None:
    path, target = tmp_path / "x", tmp_path / "target"
    if what != "a dangling link":
        target.write_text("theirs")
    if what == "a file":
        path.write_text("theirs")
    else:
        path.symlink_to(target)

    with pytest.raises(FileExistsError):
        write_new_file(path, b"ours")

    assert not target.exists() or target.read_text() == "theirs"


def test_replace_shows_the_old_or_the_new_file_and_leaves_no_other(tmp_path: Path) -> None:
    for text in (b"first", b"second"):
        replace_file(tmp_path / "x", text)

    assert (tmp_path / "x").read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_replace_that_fails_keeps_the_old_file_and_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file(tmp_path / "x", b"old")

    def refuse(source: object, target: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="read-only"):
        replace_file(tmp_path / "x", b"new")

    assert (tmp_path / "x").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("size", [0, 1, 5 * 1024 * 1024])
def test_hash_and_size_are_those_of_the_content(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "x").write_bytes(data)

    assert hash_file(tmp_path / "x") == (hashlib.sha256(data).hexdigest(), size)
    assert read_small_file(tmp_path / "x", max_bytes=size) == data


@pytest.mark.parametrize("what", ["missing", "a link", "a folder", "a pipe"])
def test_only_a_plain_file_is_read_and_nothing_hangs(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "a link":
        path.symlink_to("/etc/hostname")
    elif what == "a folder":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)

    for read in (hash_file, lambda path: read_small_file(path, max_bytes=10)):
        with pytest.raises(OSError, match="x"):
            read(path)


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")

    with pytest.raises(OSError, match="x: 5 bytes, at most 4 are read"):
        read_small_file(tmp_path / "x", max_bytes=4)


def test_folders_are_made_down_from_what_exists(tmp_path: Path) -> None:
    make_folders(tmp_path / "a" / "b", below=tmp_path)
    make_folders(tmp_path / "a" / "b", below=tmp_path)
    make_root(tmp_path / "c" / "d")

    assert (tmp_path / "a" / "b").is_dir()
    assert (tmp_path / "c" / "d").is_dir()


def test_a_root_may_be_a_link_but_nothing_below_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    make_root(tmp_path / "root")
    make_folders(tmp_path / "root" / "a", below=tmp_path / "root")
    (tmp_path / "real" / "b").symlink_to("/tmp")

    assert (tmp_path / "real" / "a").is_dir()
    with pytest.raises(RefusalError, match="is a symbolic link") as caught:
        make_folders(tmp_path / "root" / "b" / "c", below=tmp_path / "root")
    assert caught.value.reason is Reason.STORAGE_NOT_ALLOWED


def test_temporary_names_are_short_and_differ() -> None:
    names = {make_temp_name() for _ in range(100)}

    assert len(names) == 100
    assert max(map(len, names)) < 32


def test_tensors_are_written_readable_for_all(tmp_path: Path) -> None:
    write_new_tensors(tmp_path / "x", {"a": torch.ones(2)})

    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("folder", ["missing", "file/x"])
def test_what_the_system_refuses_becomes_one_clear_error(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("x")
    for write in (lambda p: write_new_file(p, b""), lambda p: write_new_tensors(p, {"a": torch.ones(1)})):
        with (
            pytest.raises(RefusalError, match=r"^OutputNotWritable: the adapter: ") as caught,
            refuse_if_not_writable("the adapter"),
        ):
            write(tmp_path / folder / "y")
        assert caught.value.reason is Reason.OUTPUT_NOT_WRITABLE
