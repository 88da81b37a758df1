"""Codes of rows that are not trained: a stable, closed list (docs/datasets.md says what each means)."""

from __future__ import annotations

from enum import StrEnum


class RowCode(StrEnum):
    """Why a row was dropped. CamelCase, never free text."""

    # the line itself
    INVALID_JSON = "InvalidJson"
    NOT_UTF8 = "NotUtf8"
    ROW_TOO_LONG = "RowTooLong"
    NESTED_TOO_DEEP = "NestedTooDeep"
    DUPLICATE_KEY = "DuplicateKey"
    INVALID_NUMBER = "InvalidNumber"
    LONE_SURROGATE = "LoneSurrogate"
    # Conversational
    MISSING_MESSAGES = "MissingMessages"
    NULL_MESSAGES = "NullMessages"
    EMPTY_MESSAGES = "EmptyMessages"
    MESSAGES_NOT_A_LIST = "MessagesNotAList"
    AMBIGUOUS_ROW = "AmbiguousRow"
    INVALID_MESSAGE = "InvalidMessage"
    MISSING_ROLE = "MissingRole"
    UNKNOWN_ROLE = "UnknownRole"
    MISSING_CONTENT = "MissingContent"
    INVALID_CONTENT = "InvalidContent"
    INVALID_TOOL_CALLS = "InvalidToolCalls"
    INVALID_TOOLS = "InvalidTools"
    INVALID_WEIGHT = "InvalidWeight"
    TOO_MANY_MESSAGES = "TooManyMessages"
    NO_ASSISTANT_TURN = "NoAssistantTurn"
    # PromptCompletion, Text
    MISSING_PROMPT = "MissingPrompt"
    INVALID_PROMPT = "InvalidPrompt"
    MISSING_COMPLETION = "MissingCompletion"
    INVALID_COMPLETION = "InvalidCompletion"
    MISSING_TEXT = "MissingText"
    INVALID_TEXT = "InvalidText"
    EMPTY_TEXT = "EmptyText"
    # chat template and tokenizer
    TEMPLATE_REFUSED = "TemplateRefused"
    NOT_RENDERED = "NotRendered"
    SAMPLE_TOO_LONG = "SampleTooLong"
    NO_SUPERVISED_TOKENS = "NoSupervisedTokens"


class RowError(ValueError):
    """A row that cannot be used; the message names the field and what is allowed, never text of the row."""

    def __init__(self, code: RowCode, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
