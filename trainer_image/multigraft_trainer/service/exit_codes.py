"""How a trainer process ends, for the kubelet and the operator: exit code, and a reason in the termination message.

128 + n after a signal n is the system's own: 137 out of memory or killed, 143 a second SIGTERM before all was saved.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from multigraft.api.reasons import RefusalError

MAX_MESSAGE_BYTES = 4096  # the kubelet reads no more


class ExitCode(IntEnum):
    """Exit codes of `python -m multigraft_trainer.service`."""

    STOPPED = 0  # SIGTERM: every job is checkpointed; start again to go on
    INTERNAL_ERROR = 1  # start again: jobs go on from their checkpoints
    BAD_CONFIGURATION = 2  # options, pool manifest, token or base model: no use to try again unchanged


def write_termination_message(path: Path, failure: RefusalError) -> None:
    """Leave `{"reason", "message"}` where the kubelet looks for it; not at all where that cannot be written."""
    text = json.dumps({"reason": failure.reason.value, "message": failure.message[: MAX_MESSAGE_BYTES // 4]})
    with suppress(OSError):  # outside a pod there is no such file
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
