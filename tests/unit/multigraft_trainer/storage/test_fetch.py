from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.fetch import fetch_file, fetch_folder
from multigraft_trainer.storage.roots import StorageRoots

FIELD = "spec.dataset.storageUri"


@pytest.fixture
def bucket() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pipe_file("/bucket/a/data.jsonl", b"one")
    files.pipe_file("/bucket/a/base/config.json", b"{}")
    files.pipe_file("/bucket/a/base/deep/x.safetensors", b"x")
    files.pipe_file("/bucket/a/base/code.py", b"raise SystemExit")
    files.pipe_file("/bucket/b/data.jsonl", b"other")
    yield files
    files.store.clear()


@pytest.fixture
def roots(tmp_path: Path) -> StorageRoots:
    (tmp_path / "data").mkdir()
    return StorageRoots.build(
        read_base=tmp_path / "data",
        write_base=tmp_path / "out",
        allowed=("memory://bucket/a", "s3://bucket", "gs://bucket", "abfs://bucket"),
        namespace="team-a",
    )


def file(roots: StorageRoots, uri: str, tmp_path: Path, **more: Any) -> Path:
    return fetch_file(uri, roots, field=FIELD, cache_dir=tmp_path / "cache", **more)


def refusal(roots: StorageRoots, uri: str, tmp_path: Path) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        file(roots, uri, tmp_path)
    assert FIELD in caught.value.message
    return caught.value


def test_a_local_file_is_given_as_it_is(roots: StorageRoots, tmp_path: Path) -> None:
    (tmp_path / "data/a.jsonl").write_text("one")
    assert file(roots, "a.jsonl", tmp_path) == tmp_path / "data/a.jsonl"


@pytest.mark.parametrize(
    "uri, words", [("missing", "does not exist"), ("folder", "is a folder"), ("pipe", "is no file")]
)
def test_what_is_no_local_file_is_not_found(roots: StorageRoots, tmp_path: Path, uri: str, words: str) -> None:
    import os

    (tmp_path / "data/folder").mkdir()
    os.mkfifo(tmp_path / "data/pipe")
    error = refusal(roots, uri, tmp_path)
    assert error.reason == Reason.DATASET_NOT_FOUND
    assert words in error.message


def test_a_remote_file_is_downloaded_under_its_own_name(roots: StorageRoots, tmp_path: Path, bucket: Any) -> None:
    path = file(roots, "memory://bucket/a/data.jsonl", tmp_path)
    assert path.read_bytes() == b"one"
    assert path.name == "data.jsonl"
    assert path.is_relative_to(tmp_path / "cache")
    assert file(roots, "memory://bucket/a/data.jsonl", tmp_path) == path


def test_A18_a_remote_file_that_changed_is_downloaded_again(roots: StorageRoots, tmp_path: Path, bucket: Any) -> None:
    file(roots, "memory://bucket/a/data.jsonl", tmp_path)
    bucket.pipe_file("/bucket/a/data.jsonl", b"two")
    assert file(roots, "memory://bucket/a/data.jsonl", tmp_path).read_bytes() == b"two"


@pytest.mark.parametrize(
    "uri, reason, words",
    [
        ("memory://bucket/a/none", Reason.DATASET_NOT_FOUND, "does not exist"),
        ("memory://bucket/a/base", Reason.DATASET_NOT_FOUND, "is a folder"),
        ("memory://bucket/b/data.jsonl", Reason.STORAGE_NOT_ALLOWED, "outside"),
        ("s3://bucket/x", Reason.NOT_SUPPORTED, "pip install s3fs"),
        ("gs://bucket/x", Reason.NOT_SUPPORTED, "pip install gcsfs"),
        ("abfs://bucket/x", Reason.NOT_SUPPORTED, "pip install adlfs"),
    ],
)
def test_remote_faults_are_typed(
    roots: StorageRoots, tmp_path: Path, bucket: Any, uri: str, reason: Reason, words: str
) -> None:
    error = refusal(roots, uri, tmp_path)
    assert error.reason == reason
    assert words in error.message


def test_what_a_library_says_is_not_passed_on(
    roots: StorageRoots, tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("https://id:secret@host refused")

    monkeypatch.setattr(type(bucket), "open", fail)
    error = refusal(roots, "memory://bucket/a/data.jsonl", tmp_path)
    assert error.message.endswith("cannot be read (ConnectionError)")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_remote_folder_brings_the_files_asked_for(roots: StorageRoots, tmp_path: Path, bucket: Any) -> None:
    folder = fetch_folder(
        "memory://bucket/a/base",
        roots,
        field=FIELD,
        cache_dir=tmp_path / "cache",
        missing=Reason.INVALID_START_ADAPTER,
        only=("*.json", "*.safetensors"),
    )
    got = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert got == ["config.json", "deep/x.safetensors"]


def test_a_listing_cannot_lead_out_of_its_folder(
    roots: StorageRoots, tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("/bucket/a/base/../../../evil", "/bucket/b/data.jsonl", "/bucket/a/base"):
        monkeypatch.setattr(type(bucket), "find", lambda *_, name=name, **__: [name])
        with pytest.raises(RefusalError, match="outside itself"):
            fetch_folder(
                "memory://bucket/a/base", roots, field=FIELD, cache_dir=tmp_path, missing=Reason.DATASET_NOT_FOUND
            )


def local_folder(roots: StorageRoots, tmp_path: Path, only: tuple[str, ...] = ("*",)) -> Path:
    return fetch_folder(
        "adapter",
        roots,
        field="spec.resumeFrom.storageUri",
        cache_dir=tmp_path,
        missing=Reason.INVALID_START_ADAPTER,
        only=only,
    )


def test_K11_a_local_folder_must_not_link_out_of_the_allowed_storage(roots: StorageRoots, tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="does not exist"):
        local_folder(roots, tmp_path)
    folder = tmp_path / "data/adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "inner").symlink_to(folder / "adapter_config.json")
    assert local_folder(roots, tmp_path) == folder
    (folder / "root").symlink_to("/")
    assert local_folder(roots, tmp_path, only=("*.json",)) == folder
    with pytest.raises(RefusalError, match="'root', a link that leads outside") as caught:
        local_folder(roots, tmp_path)
    assert caught.value.reason == Reason.STORAGE_NOT_ALLOWED
    (folder / "root").unlink()
    (folder / "adapter_model.safetensors").symlink_to("/etc/hostname")
    with pytest.raises(RefusalError, match="a link that leads outside"):
        local_folder(roots, tmp_path, only=("adapter_model.safetensors",))
