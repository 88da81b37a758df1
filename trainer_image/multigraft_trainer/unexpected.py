"""Turn an exception that nobody foresaw into a typed refusal, so that it ends one job and says what happened."""

from __future__ import annotations

import errno
import logging

import torch

from multigraft.api.reasons import Reason, RefusalError

# The disk is full, over quota or read-only: a fault of the machine that the user can mend.
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_SHOWN = 200
_NO_HOST_MEMORY = "DefaultCPUAllocator"  # torch raises a plain RuntimeError where the CPU's memory ends

_log = logging.getLogger(__name__)


def explain_unexpected(error: Exception, doing: str) -> RefusalError:
    """Give the refusal for `error`, with its traceback in the log; a refusal stays as it is.

    Args:
        doing: What was done when it happened, such as `reading the rows`.
    """
    if isinstance(error, RefusalError):
        return error
    _log.error("%s", doing, exc_info=error)
    lines = str(error).splitlines()
    text = f"{doing}: {type(error).__name__}" + (f": {lines[0][:_SHOWN]}" if lines else "")
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _NO_HOST_MEMORY in str(error):
        return RefusalError(Reason.OUT_OF_MEMORY, text)
    if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
        return RefusalError(Reason.OUTPUT_NOT_WRITABLE, text)
    return RefusalError(Reason.INTERNAL_ERROR, text)
