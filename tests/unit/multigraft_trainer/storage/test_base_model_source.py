from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from huggingface_hub import constants

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.base_model_source import fetch_base_model

FIELD = "spec.baseModel.storageUri"


def fetch(uri: str, tmp_path: Path, revision: str | None = None) -> Path:
    return fetch_base_model(uri, revision=revision, base=tmp_path, cache_dir=tmp_path / "cache", field=FIELD)


def refusal(uri: str, tmp_path: Path, revision: str | None = None) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        fetch(uri, tmp_path, revision)
    assert caught.value.message.startswith(FIELD)
    return caught.value


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_a_folder_is_found_relative_absolute_and_as_a_uri(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for uri in ("base", "./base/", str(tmp_path / "base"), f"file://{tmp_path}/base"):
        assert fetch(uri, tmp_path) == tmp_path / "base"


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refusal("file", tmp_path).message
    assert "does not exist" in refusal("missing", tmp_path).message
    assert refusal("missing", tmp_path).reason == Reason.BASE_MODEL_INVALID


def test_a_remote_folder_brings_data_and_no_code(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    for name in ("config.json", "model.safetensors", "modeling.py", "pytorch_model.bin", "chat_template.jinja"):
        files.pipe_file(f"/models/base/{name}", b"x")
    got = sorted(path.name for path in fetch("memory://models/base", tmp_path).iterdir())
    assert got == ["chat_template.jinja", "config.json", "model.safetensors"]
    files.store.clear()


@pytest.mark.usefixtures("offline")
def test_a_hub_model_comes_from_the_cache_by_revision(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "cache/hub/models--owner--name"
    (repository / "refs").mkdir(parents=True)
    for ref in ("main", "v1"):
        (repository / "refs" / ref).write_text(commit)
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    for revision in (None, "v1", commit):
        assert fetch("hf://owner/name", tmp_path, revision) == snapshot
    assert "cannot be reached" in refusal("hf://owner/name", tmp_path, "v2").message


@pytest.mark.usefixtures("offline")
def test_a_hub_model_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    error = refusal("hf://owner/name", tmp_path)
    assert error.reason == Reason.BASE_MODEL_INVALID
    assert "not in the cache, and the hub cannot be reached" in error.message


@pytest.mark.parametrize("uri", ["hf://owner", "hf://owner/name/file"])
def test_a_hub_name_has_two_parts(tmp_path: Path, uri: str) -> None:
    assert "must be hf://owner/name" in refusal(uri, tmp_path).message


def test_a_revision_is_for_the_hub_only(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    error = refusal("base", tmp_path, "v1")
    assert error.reason == Reason.INVALID_SPEC
    assert "hf:// only" in error.message


def test_a_malformed_uri_is_refused(tmp_path: Path) -> None:
    assert refusal("https://host/model", tmp_path).reason == Reason.STORAGE_NOT_ALLOWED
    assert refusal("s3://bucket/model", tmp_path).reason == Reason.NOT_SUPPORTED
