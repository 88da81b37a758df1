"""Load a tokenizer from a model folder: its data only, never its code, never the network."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.intake.file_name import shown_name
from multigraft_trainer.intake.limits import MAX_TEMPLATE_BYTES
from multigraft_trainer.intake.template import ChatTemplate

_TEMPLATE_FILE = "chat_template.jinja"
_CONFIG_FILE = "tokenizer_config.json"
_MAX_CONFIG_BYTES = 64 * 2**20  # a config that lists 100,000 added tokens has 20 MB


@dataclass(frozen=True)
class IntakeTokenizer:
    """A fast tokenizer with its chat template, and a fingerprint of both."""

    backend: Tokenizer  # neither truncates nor pads
    template: ChatTemplate | None
    bos_id: int | None
    eos_id: int | None
    longest_token: int  # characters
    sha256: str

    @classmethod
    def from_fast(cls, tokenizer: Any, *, origin: str = "of the tokenizer") -> IntakeTokenizer:
        """Take over transformers' fast tokenizer, which is not changed.

        Args:
            tokenizer: A `PreTrainedTokenizerFast`.
            origin: File of the chat template, for messages.

        Raises:
            RefusalError: `BaseModelInvalid` if it is not a fast tokenizer.
        """
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise RefusalError(Reason.BASE_MODEL_INVALID, "the tokenizer is not a fast one (tokenizer.json is needed)")
        serialised = tokenizer.backend_tokenizer.to_str()
        backend = Tokenizer.from_str(serialised)
        backend.encode_special_tokens = tokenizer.backend_tokenizer.encode_special_tokens
        backend.no_truncation()
        backend.no_padding()
        variables = {key: str(text) for key, text in tokenizer.special_tokens_map.items()}
        added = backend.get_added_tokens_decoder().values()
        special = {token.content for token in added if token.special and token.content.strip()}
        end_texts = tuple(sorted(special, key=lambda text: (-len(text), text)))
        template = _read_template(tokenizer.chat_template, variables, end_texts, origin)
        key = [
            backend.to_str(),
            backend.encode_special_tokens,
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
            variables,
            template.sources if template else None,
        ]
        return cls(
            backend=backend,
            template=template,
            bos_id=tokenizer.bos_token_id,
            eos_id=tokenizer.eos_token_id,
            longest_token=max(map(len, backend.get_vocab(with_added_tokens=True)), default=1),
            sha256=hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest(),
        )


def load_tokenizer(folder: Path) -> IntakeTokenizer:
    """Load tokenizer.json with its settings and the chat template from a Hugging Face folder.

    The tokenizer is the one that tokenizer.json describes, not one that a model class would rebuild from parts of it.

    Raises:
        RefusalError: `RemoteCodeRefused` if the tokenizer asks for code of its own (`auto_map`); `InvalidChatTemplate`
            if the template is too long; `BaseModelInvalid` if there is no readable fast tokenizer.
    """
    config = _read_config(folder / _CONFIG_FILE)
    if config.get("auto_map"):
        text = f"{_CONFIG_FILE} has `auto_map`: the tokenizer needs Python code of the model folder, which is never run"
        raise RefusalError(Reason.REMOTE_CODE_REFUSED, text)
    if not (folder / "tokenizer.json").is_file():
        text = f"the folder {shown_name(folder)} has no tokenizer.json; a fast tokenizer is needed"
        raise RefusalError(Reason.BASE_MODEL_INVALID, text)
    template_file = folder / _TEMPLATE_FILE
    if template_file.is_file() and template_file.stat().st_size > MAX_TEMPLATE_BYTES:
        raise _template_too_long(_TEMPLATE_FILE)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # whatever the libraries raise on a damaged folder; their texts show paths and internals
        text = f"the tokenizer of {shown_name(folder)} cannot be loaded ({type(error).__name__})"
        raise RefusalError(Reason.BASE_MODEL_INVALID, text) from error
    return IntakeTokenizer.from_fast(tokenizer, origin=_TEMPLATE_FILE if template_file.is_file() else _CONFIG_FILE)


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise RefusalError(Reason.BASE_MODEL_INVALID, f"{path.name} is larger than {_MAX_CONFIG_BYTES} bytes")
        config = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError):
        raise RefusalError(Reason.BASE_MODEL_INVALID, f"{path.name} is not readable JSON") from None
    if not isinstance(config, dict):
        raise RefusalError(Reason.BASE_MODEL_INVALID, f"{path.name} is not a JSON object")
    return config


def _read_template(
    value: Any, variables: dict[str, str], end_texts: tuple[str, ...], origin: str
) -> ChatTemplate | None:
    sources = {"default": value} if isinstance(value, str) else dict(value) if value else {}
    for source in sources.values():
        if len(source.encode(errors="replace")) > MAX_TEMPLATE_BYTES:
            raise _template_too_long(origin)
    if not sources:
        return None
    if "default" not in sources:
        raise RefusalError(Reason.INVALID_CHAT_TEMPLATE, f"chat template {origin}: none of several is named `default`")
    return ChatTemplate(origin, sources, variables, end_texts)


def _template_too_long(origin: str) -> RefusalError:
    return RefusalError(
        Reason.INVALID_CHAT_TEMPLATE, f"chat template {origin}: is longer than {MAX_TEMPLATE_BYTES} bytes"
    )
