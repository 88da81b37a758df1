"""Turns of a conversation: what a message may be, and the one form in which templates see it.

Accepted spellings: `role`/`content`, or `from`/`value` with the tags human and gpt. Content is text or a list of text
parts, which are joined. Keys that are null are left out, because templates ask whether a key is defined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from multigraft_trainer.intake.codes import RowCode, RowError
from multigraft_trainer.intake.tools import check_tool_calls

ROLES = ("system", "user", "assistant", "tool")
_TAGS = {"human": "user", "gpt": "assistant"}
_NOT_SHOWN = {"weight", "function_call"}


@dataclass(frozen=True)
class Turn:
    """One checked message."""

    message: dict[str, Any]  # as the template sees it: role, content (a string), tool_calls, other keys as given
    supervised: bool

    @property
    def role(self) -> str:
        return str(self.message["role"])

    @property
    def content(self) -> str:
        return str(self.message["content"])


def check_messages(value: Any, field: str) -> tuple[Turn, ...]:
    """Check a list of messages.

    Raises:
        RowError: Naming the message by its index, what is wrong and what is allowed.
    """
    if value is None:
        raise RowError(RowCode.NULL_MESSAGES, f"`{field}` is null; a list of messages is needed")
    if isinstance(value, str):
        raise RowError(RowCode.MESSAGES_NOT_A_LIST, f"`{field}` is text; a list of messages is needed")
    if not isinstance(value, list):
        raise RowError(RowCode.MESSAGES_NOT_A_LIST, f"`{field}` is not a list of messages")
    if not value:
        raise RowError(RowCode.EMPTY_MESSAGES, f"`{field}` is empty")
    return tuple(_check_message(message, f"{field}[{index}]") for index, message in enumerate(value))


def _check_message(message: Any, where: str) -> Turn:
    if not isinstance(message, dict):
        raise RowError(RowCode.INVALID_MESSAGE, f"{where} is not an object with `role` and `content`")
    role_key, content_key = ("from", "value") if "from" in message else ("role", "content")
    if role_key == "from" and ("role" in message or "content" in message):
        raise RowError(RowCode.INVALID_MESSAGE, f"{where} mixes `role`/`content` with `from`/`value`")
    role = _check_role(message.get(role_key), where, role_key)
    calls = _check_calls(message, role, where)
    content = _check_content(message.get(content_key), f"{where}.{content_key}", may_be_absent=bool(calls))
    own = {role_key: ("role", role), content_key: ("content", content), "tool_calls": ("tool_calls", calls or None)}
    items = [own.get(key, (key, item)) for key, item in message.items() if key not in _NOT_SHOWN]
    # templates may print a whole message: keys keep the order in which the row has them
    checked = {key: item for key, item in items if item is not None}
    checked.setdefault("content", content)
    return Turn(checked, supervised=_check_weight(message.get("weight"), role, where))


def _check_role(role: Any, where: str, key: str) -> str:
    if role is None:
        raise RowError(RowCode.MISSING_ROLE, f"{where} has no `{key}`; allowed: {', '.join(ROLES)}")
    role = _TAGS.get(role, role) if isinstance(role, str) else role
    if role not in ROLES:
        shown = f" {role!a}" if isinstance(role, str) and len(role) <= 20 else ""
        raise RowError(RowCode.UNKNOWN_ROLE, f"{where}.{key}{shown} is not allowed; allowed: {', '.join(ROLES)}")
    return str(role)


def _check_calls(message: dict[str, Any], role: str, where: str) -> list[dict[str, Any]]:
    if message.get("function_call") is not None:
        raise RowError(RowCode.INVALID_TOOL_CALLS, f"{where}.function_call is not read; use `tool_calls`")
    calls = check_tool_calls(message.get("tool_calls"), f"{where}.tool_calls")
    if calls and role != "assistant":
        raise RowError(RowCode.INVALID_TOOL_CALLS, f"{where}.tool_calls is allowed for the role assistant only")
    return calls


def _check_content(content: Any, where: str, *, may_be_absent: bool) -> str:
    if content is None:
        if may_be_absent:
            return ""
        raise RowError(RowCode.MISSING_CONTENT, f"{where} is missing or null; text is needed (it may be empty)")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError(RowCode.INVALID_CONTENT, f"{where} is neither text nor a list of text parts")
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            need = '{"type": "text", "text": ...}'
            raise RowError(RowCode.INVALID_CONTENT, f"{where}[{index}] is not {need}; only text is trained")
        texts.append(text)
    return "".join(texts)


def _check_weight(weight: Any, role: str, where: str) -> bool:
    """Tell whether the turn is supervised: an assistant's, unless its `weight` is 0."""
    if weight is None:
        return role == "assistant"
    if role != "assistant" or isinstance(weight, bool) or weight not in (0, 1):
        raise RowError(RowCode.INVALID_WEIGHT, f"{where}.weight must be 0 or 1, on the role assistant only")
    return bool(weight)
