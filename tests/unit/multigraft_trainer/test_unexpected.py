from __future__ import annotations

import errno

import pytest
import torch

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.unexpected import explain_unexpected


@pytest.mark.parametrize(
    "error, want",
    [
        (MemoryError(), Reason.OUT_OF_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory"), Reason.OUT_OF_MEMORY),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate"), Reason.OUT_OF_MEMORY),
        (OSError(errno.ENOSPC, "No space left on device"), Reason.OUTPUT_NOT_WRITABLE),
        (OSError(errno.EROFS, "Read-only file system"), Reason.OUTPUT_NOT_WRITABLE),
        (PermissionError(errno.EACCES, "Permission denied"), Reason.INTERNAL_ERROR),
        (KeyError("x"), Reason.INTERNAL_ERROR),
    ],
    ids=repr,
)
def test_each_kind_of_exception_has_a_typed_reason_and_one_short_line(error: Exception, want: Reason) -> None:
    got = explain_unexpected(error, "reading")
    assert got.reason is want
    assert got.message.startswith(f"reading: {type(error).__name__}")
    assert "\n" not in got.message


def test_only_the_first_line_is_shown_and_it_is_cut() -> None:
    got = explain_unexpected(ValueError("a" * 1000 + "\nsecond"), "reading")
    assert len(got.message) < 250


def test_a_refusal_stays_as_it_is() -> None:
    error = RefusalError(Reason.INVALID_DATASET, "row 3")
    assert explain_unexpected(error, "reading") is error
