"""Typed reasons: why a job failed, waits, or an input was refused. Stable names, CamelCase, never free text."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Machine-readable reasons of conditions, results and refusals."""

    # a manifest or a reference in it
    INVALID_SPEC = "InvalidSpec"
    POOL_NOT_FOUND = "PoolNotFound"
    POOL_NOT_READY = "PoolNotReady"
    RANK_EXCEEDS_POOL = "RankExceedsPool"
    SEQUENCE_EXCEEDS_CAPACITY = "SequenceExceedsCapacity"
    TARGET_MODULES_NOT_ALLOWED = "TargetModulesNotAllowed"
    TARGET_MODULES_NOT_FOUND = "TargetModulesNotFound"
    STORAGE_NOT_ALLOWED = "StorageNotAllowed"
    NOT_SUPPORTED = "NotSupported"
    # base model
    BASE_MODEL_INVALID = "BaseModelInvalid"
    REMOTE_CODE_REFUSED = "RemoteCodeRefused"
    # dataset
    DATASET_NOT_FOUND = "DatasetNotFound"
    INVALID_DATASET = "InvalidDataset"
    DATASET_EMPTY = "DatasetEmpty"
    INVALID_CHAT_TEMPLATE = "InvalidChatTemplate"
    TOKEN_OUT_OF_RANGE = "TokenOutOfRange"  # noqa: S105 - a reason, not a password
    # start adapter, checkpoint
    INVALID_START_ADAPTER = "InvalidStartAdapter"
    INVALID_CHECKPOINT = "InvalidCheckpoint"
    # training
    NON_FINITE = "NonFinite"
    NO_WORK = "NoWork"
    OUT_OF_MEMORY = "OutOfMemory"
    OUTPUT_NOT_WRITABLE = "OutputNotWritable"
    EXPORT_INVALID = "ExportInvalid"
    CLAIM_LOST = "ClaimLost"  # another trainer has the job now
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    INTERNAL_ERROR = "InternalError"
    # waiting
    NO_FREE_SLOT = "NoFreeSlot"
    SUSPENDED = "Suspended"


class RefusalError(ValueError):
    """One clear error for the user: typed reason, and a message that names field or row, value and what is allowed."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
