"""The secret that callers of the control port must know: a mounted file, read anew for each call.

A Secret that changes is remounted by the kubelet some time later. So the file may hold several tokens, one a line, and
each is good: write the new one beside the old, and take the old one away once all callers have the new.
"""

from __future__ import annotations

import hmac
from pathlib import Path

from multigraft.api.reasons import Reason, RefusalError

MIN_BYTES = 16
_SCHEME = "bearer"


class BearerToken:
    """Checks `Authorization` headers against a file. Shows no token, whatever happens."""

    def __init__(self, path: Path) -> None:
        """Look at the file.

        Raises:
            RefusalError: INVALID_SPEC, if it cannot be read or holds no token of at least 16 bytes.
        """
        self._path = path
        try:
            tokens = self._read()
        except OSError as error:
            raise RefusalError(Reason.INVALID_SPEC, f"--token-file {path}: {error.strerror}") from None
        if not tokens:
            text = f"--token-file {path}: holds no token; want lines of at least {MIN_BYTES} bytes"
            raise RefusalError(Reason.INVALID_SPEC, text)

    def admits(self, header: str | None) -> bool:
        """Tell whether the header carries one of the tokens; takes as long whatever is wrong with it."""
        scheme, _, given = (header or "").partition(" ")
        try:
            tokens = self._read()
        except OSError:
            return False
        found = [hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token) for token in tokens]
        return scheme.lower() == _SCHEME and any(found)

    def _read(self) -> list[bytes]:
        lines = (line.strip() for line in self._path.read_bytes().splitlines())
        return [line for line in lines if len(line) >= MIN_BYTES]
