"""Wait for something that is not told of."""

import time
from collections.abc import Callable

TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.1


def wait_until(
    holds: Callable[[], bool], describe: Callable[[], object], timeout_seconds: float = TIMEOUT_SECONDS
) -> None:
    """Return as soon as `holds()` is true.

    Raises:
        TimeoutError: If it is not in time; the text is what `describe()` gives then.
    """
    deadline = time.monotonic() + timeout_seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_seconds:.0f} s: {describe()}")
        time.sleep(POLL_SECONDS)
