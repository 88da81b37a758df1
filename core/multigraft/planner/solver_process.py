"""One solver process: its pipes, its group, and the problem that it works on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence

READ_BYTES = 1 << 16
MAX_REPLY_BYTES = 4 << 20


class SolverProcess:
    """A process that takes JSON lines and gives JSON lines; never blocks its caller, killed with its whole group."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = tuple(command)
        self.problem: int | None = None  # index of the problem that it works on
        self.kill_at = 0.0  # monotonic time
        self._process: subprocess.Popen[bytes] | None = None
        self._inbox = b""
        self._outbox = b""

    @property
    def is_alive(self) -> bool:
        """Say whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def descriptors(self) -> tuple[int, int]:
        """Give the file descriptors of its input and output."""
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the solver process does not run")
        return self._process.stdin.fileno(), self._process.stdout.fileno()

    def start(self) -> None:
        """Start the process if it does not run.

        Raises:
            OSError: If it cannot be started.
        """
        if self.is_alive:
            return
        self.kill()
        self._process = subprocess.Popen(  # noqa: S603 - the command is ours
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # a group of its own, to be killed with all that the solver started
        )
        for descriptor in self.descriptors:
            os.set_blocking(descriptor, False)

    def kill(self) -> None:
        """Kill the process and its group; its problem is forgotten."""
        process, self._process = self._process, None
        self.problem, self._inbox, self._outbox = None, b"", b""
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.wait()

    def post(self, line: bytes) -> None:
        """Queue a line for `flush`."""
        self._outbox += line

    def flush(self) -> bool:
        """Write what the pipe takes; say whether all is written.

        Raises:
            OSError: If the process closed its input.
        """
        with contextlib.suppress(BlockingIOError):
            self._outbox = self._outbox[os.write(self.descriptors[0], self._outbox) :]
        return not self._outbox

    def read_lines(self) -> Iterator[bytes]:
        """Give the lines that have arrived.

        Raises:
            EOFError: If the process ended.
            ValueError: If it sent more than `MAX_REPLY_BYTES` without an end of line.
        """
        try:
            chunk = os.read(self.descriptors[1], READ_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            raise EOFError("the process ended")
        *lines, self._inbox = (self._inbox + chunk).split(b"\n")
        if len(self._inbox) > MAX_REPLY_BYTES:
            raise ValueError(f"more than {MAX_REPLY_BYTES} bytes without an end of line")
        yield from lines
