"""SIGINT, SIGTERM and SIGHUP of a local run: the first stops it in good order, the second at once, the third kills it.

Whatever is being done, `result.json` is written after the first two.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILLS = 3  # the number of signals that ends the process whatever it does


class StopRequested(BaseException):
    """Raised in the main thread by a signal that asks the run to end."""


class StopSignals:
    """Handles the signals between `__enter__` and `__exit__`. Signals that the parent ignores (nohup) stay ignored."""

    def __init__(self) -> None:
        self.count = 0
        self._on_first: Callable[[], None] | None = None
        self._is_shielded = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python hands signals to no other thread
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def hand_to(self, stop: Callable[[], None]) -> Iterator[None]:
        """Let the first signal call `stop`, which ends the body in good order; outside of it, it raises."""
        self._on_first = stop
        try:
            yield
        finally:
            self._on_first = None

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Let the body end, as it is short and must be whole; only the last signal breaks into it."""
        self._is_shielded = True
        try:
            yield
        finally:
            self._is_shielded = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count >= KILLS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._is_shielded:
            return
        elif self.count == 1 and self._on_first is not None:
            self._on_first()
        else:
            raise StopRequested(signal.Signals(number).name)
