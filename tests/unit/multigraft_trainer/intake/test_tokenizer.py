from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from builders.tiny_base import BOS_ID, EOS_ID, add_auto_map, build_tiny_tokenizer
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake.limits import MAX_TEMPLATE_BYTES
from multigraft_trainer.intake.tokenizer import IntakeTokenizer, load_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_tiny_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refusal(folder: Path) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        load_tokenizer(folder)
    assert len(str(caught.value)) < 300
    assert str(folder.parent) not in str(caught.value)
    return caught.value


def test_a_folder_gives_what_the_tokenizer_in_memory_gives(folder: Path) -> None:
    got = load_tokenizer(folder)
    want = IntakeTokenizer.from_fast(build_tiny_tokenizer())
    assert got.template is not None
    assert want.template is not None
    assert got.template.sources == want.template.sources
    assert got.template.origin == "chat_template.jinja"
    assert (got.bos_id, got.eos_id) == (BOS_ID, EOS_ID)
    assert got.template.end_texts == ("<|im_start|>", "<|im_end|>", "<bos>", "<pad>")
    assert got.sha256 == want.sha256
    text = "a <|im_start|>é😀<bos>\n"
    assert got.backend.encode(text).ids == want.backend.encode(text).ids


def test_a_template_in_the_config_is_found(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    change_config(folder, chat_template="{{ messages[0].content }}")
    template = load_tokenizer(folder).template
    assert template is not None
    assert template.origin == "tokenizer_config.json"
    assert template.sources == {"default": "{{ messages[0].content }}"}


def test_several_named_templates_are_found(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    named = [{"name": name, "template": name} for name in ("default", "tool_use")]
    change_config(folder, chat_template=named)
    template = load_tokenizer(folder).template
    assert template is not None
    assert template.sources == {"default": "default", "tool_use": "tool_use"}
    change_config(folder, chat_template=[{"name": "rag", "template": "x"}])
    assert refusal(folder).reason == Reason.INVALID_CHAT_TEMPLATE


def test_a_tokenizer_without_template_is_fine_until_a_conversation_comes(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert load_tokenizer(folder).template is None


@pytest.mark.parametrize("value", [{"AutoTokenizer": ["tok.Tok", None]}, ["tok.Tok", None]])
def test_K05_a_tokenizer_that_wants_its_own_code_is_refused(folder: Path, value: Any) -> None:
    canary = folder / "canary"
    (folder / "tok.py").write_text(f"import os; os.mkdir({str(canary)!r})")
    change_config(folder, auto_map=value, tokenizer_class="Tok")
    error = refusal(folder)
    assert error.reason == Reason.REMOTE_CODE_REFUSED
    assert "tokenizer_config.json has `auto_map`" in error.message
    assert not canary.exists()


def test_K05_code_of_the_model_is_not_run_for_its_tokenizer(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "canary"}')
    add_auto_map(folder)
    (folder / "modeling_canary.py").write_text(f"import os; os.mkdir({str(folder / 'canary')!r})")
    assert load_tokenizer(folder).eos_id == EOS_ID
    assert not (folder / "canary").exists()


@pytest.mark.parametrize("place", ["file", "config"])
def test_K06_a_template_of_5_mb_is_refused_by_size(folder: Path, place: str) -> None:
    if place == "file":
        (folder / "chat_template.jinja").write_text("x" * 5_000_000)
    else:
        (folder / "chat_template.jinja").unlink()
        change_config(folder, chat_template="x" * 5_000_000)
    error = refusal(folder)
    assert error.reason == Reason.INVALID_CHAT_TEMPLATE
    assert f"longer than {MAX_TEMPLATE_BYTES} bytes" in error.message


@pytest.mark.parametrize(
    "name, data",
    [
        ("tokenizer.json", None),
        ("tokenizer.json", b""),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff\xfe"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b"[" * 100_000),
    ],
)
def test_a_damaged_or_slow_tokenizer_is_refused(folder: Path, name: str, data: bytes | None) -> None:
    path = folder / name
    path.unlink() if data is None else path.write_bytes(data)
    assert refusal(folder).reason == Reason.BASE_MODEL_INVALID


def test_the_network_is_not_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "create_connection", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    (folder / "config.json").write_text('{"model_type": "mistral"}')
    assert load_tokenizer(folder).eos_id == EOS_ID
    (folder / "tokenizer.json").unlink()
    assert refusal(folder).reason == Reason.BASE_MODEL_INVALID


def test_truncation_and_padding_of_the_file_are_left_aside(folder: Path) -> None:
    fast = build_tiny_tokenizer()
    fast.backend_tokenizer.enable_truncation(4)
    fast.backend_tokenizer.enable_padding(length=64)
    fast.save_pretrained(folder)
    assert json.loads((folder / "tokenizer.json").read_text())["truncation"]
    tokenizer = load_tokenizer(folder)
    assert len(tokenizer.backend.encode("x" * 10).ids) == 10
    assert tokenizer.sha256 == IntakeTokenizer.from_fast(build_tiny_tokenizer()).sha256


def test_the_given_tokenizer_is_not_changed() -> None:
    fast = build_tiny_tokenizer()
    fast.backend_tokenizer.enable_truncation(4)
    IntakeTokenizer.from_fast(fast)
    assert fast.backend_tokenizer.truncation is not None


def test_another_kind_of_tokenizer_is_refused() -> None:
    with pytest.raises(RefusalError, match="not a fast one"):
        IntakeTokenizer.from_fast(object())
