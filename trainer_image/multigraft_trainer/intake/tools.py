"""Tool declarations and tool calls: checked, and brought into the nested form that chat templates read."""

from __future__ import annotations

from typing import Any

from multigraft_trainer.intake.codes import RowCode, RowError
from multigraft_trainer.intake.json_text import JsonSyntaxError, parse_json


def check_tools(value: Any) -> list[dict[str, Any]] | None:
    """Check a row's `tools`: a list of declarations, or that list as JSON text; null, blank or empty means no tools.

    Raises:
        RowError: `InvalidTools`.
    """
    if isinstance(value, str):
        value = _parse(value, RowCode.INVALID_TOOLS, "tools") if value.strip() else None
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise RowError(RowCode.INVALID_TOOLS, "`tools` is not a list of tool declarations")
    for index, tool in enumerate(value):
        if tool_name(tool) is None:
            raise RowError(RowCode.INVALID_TOOLS, f"tools[{index}] is not an object with `function.name`")
    return value


def check_tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    """Check the calls of one turn and give each as {..., "function": {"name", "arguments": an object, ...}}.

    Arguments that are JSON text (as the OpenAI format has them) become the object they stand for: most templates
    serialise what they get, and would quote a string once more.

    Raises:
        RowError: `InvalidToolCalls`.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise RowError(RowCode.INVALID_TOOL_CALLS, f"{where} is not a list")
    return [_check_call(call, f"{where}[{index}]") for index, call in enumerate(value)]


def tool_name(tool: Any) -> str | None:
    """Give the function's name of a tool or a call, nested under `function` or flat; None if there is none."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) and name else None


def _check_call(call: Any, where: str) -> dict[str, Any]:
    name = tool_name(call)
    if name is None:
        raise RowError(RowCode.INVALID_TOOL_CALLS, f"{where} is not an object with `function.name`")
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = (
            _parse(arguments, RowCode.INVALID_TOOL_CALLS, f"{where}.function.arguments") if arguments.strip() else {}
        )
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise RowError(RowCode.INVALID_TOOL_CALLS, f"{where}.function.arguments is not an object")
    if function is call:
        outer = {key: item for key, item in call.items() if key not in {"name", "arguments"} and item is not None}
        return {"type": "function", **outer, "function": {"name": name, "arguments": arguments}}
    inner = {key: item for key, item in function.items() if item is not None}
    shown = {key: item for key, item in call.items() if item is not None}
    return {**shown, "function": {**inner, "arguments": arguments}}


def _parse(text: str, code: RowCode, where: str) -> Any:
    try:
        return parse_json(text)
    except JsonSyntaxError:
        raise RowError(code, f"{where} is text that is not JSON") from None
