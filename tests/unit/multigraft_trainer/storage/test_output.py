from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.output import open_output
from multigraft_trainer.storage.roots import StorageRoots

FIELD = "spec.output.storageUri"


@pytest.fixture
def bucket() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


@pytest.fixture
def roots(tmp_path: Path) -> StorageRoots:
    return StorageRoots.build(
        read_base=tmp_path,
        write_base=tmp_path / "out",
        allowed=("memory://bucket/a", "s3://bucket"),
        namespace="team-a",
    )


def test_a_local_folder_is_made_and_left_empty(roots: StorageRoots, tmp_path: Path) -> None:
    output = open_output("adapters/team-a/x", roots, field=FIELD, cache_dir=tmp_path / "cache")
    assert output.path == tmp_path / "out/adapters/team-a/x"
    assert list(output.path.iterdir()) == []
    output.publish()


def test_what_lies_in_a_folder_is_left_alone(roots: StorageRoots, tmp_path: Path) -> None:
    (tmp_path / "out/x").mkdir(parents=True)
    (tmp_path / "out/x/mine").write_text("mine")
    open_output("x", roots, field=FIELD, cache_dir=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "out/x").iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_made_is_not_writable(roots: StorageRoots, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").write_text("")
    for uri in ("file", "file/deeper"):
        with pytest.raises(RefusalError, match="cannot be written") as caught:
            open_output(uri, roots, field=FIELD, cache_dir=tmp_path / "cache")
        assert caught.value.reason == Reason.OUTPUT_NOT_WRITABLE
        assert caught.value.message.startswith(FIELD)


def test_a_file_system_that_takes_no_files_is_not_writable(tmp_path: Path) -> None:
    roots = StorageRoots.build(read_base=tmp_path, write_base="/proc", namespace="team-a")
    with pytest.raises(RefusalError, match="cannot be written") as caught:
        open_output("self/x", roots, field=FIELD, cache_dir=tmp_path / "cache")
    assert caught.value.reason == Reason.OUTPUT_NOT_WRITABLE


def test_a_remote_folder_is_tried_at_once_and_filled_by_publish(
    roots: StorageRoots, tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = open_output("memory://bucket/a/x", roots, field=FIELD, cache_dir=tmp_path / "cache")
    assert bucket.find("/bucket") == []
    order: list[str] = []
    real = type(bucket).put_file
    monkeypatch.setattr(type(bucket), "put_file", lambda self, a, b, **k: (order.append(b), real(self, a, b, **k))[1])
    (output.path / "deep").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", "deep/file"):
        (output.path / name).write_text(name)
    output.publish(last="adapter_config.json")
    assert bucket.cat_file("/bucket/a/x/deep/file") == b"deep/file"
    assert [name.removeprefix("/bucket/a/x/") for name in order] == [
        "adapter_model.safetensors",
        "deep/file",
        "adapter_config.json",
    ]


def test_a_remote_place_that_refuses_is_not_writable_and_says_no_more(
    roots: StorageRoots, tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = open_output("memory://bucket/a/x", roots, field=FIELD, cache_dir=tmp_path / "cache")
    (output.path / "file").write_text("")

    def fail(*_: object, **__: object) -> None:
        raise PermissionError("key secret has no rights")

    monkeypatch.setattr(type(bucket), "pipe_file", fail)
    monkeypatch.setattr(type(bucket), "put_file", fail)
    for write in (
        output.publish,
        lambda: open_output("memory://bucket/a/x", roots, field=FIELD, cache_dir=tmp_path / "cache"),
    ):
        with pytest.raises(RefusalError, match=r"cannot be written: PermissionError$") as caught:
            write()
        assert caught.value.reason == Reason.OUTPUT_NOT_WRITABLE


def test_a_missing_package_is_named(roots: StorageRoots, tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="pip install s3fs") as caught:
        open_output("s3://bucket/x", roots, field=FIELD, cache_dir=tmp_path / "cache")
    assert caught.value.reason == Reason.NOT_SUPPORTED
