"""The bearer token of a pool's control port: derived from the operator's own key, so that no Secret has to be read."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

from multigraft_operator.children.labels import build_metadata, child_name
from multigraft_operator.observed import PoolView

FILE = "token"
MIN_KEY_BYTES = 32


def build_token(key: bytes, pool_uid: str) -> str:
    """Derive the token of a pool.

    Raises:
        ValueError: If the key has fewer than 32 bytes.
    """
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"token key: got {len(key)} bytes, want at least {MIN_KEY_BYTES}")
    return hmac.new(key, f"multigraft.dev/control/{pool_uid}".encode(), hashlib.sha256).hexdigest()


def build_token_secret(pool: PoolView, key: bytes) -> dict[str, Any]:
    """Build the Secret that a pool's trainers mount."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": build_metadata(pool, child_name(pool.key.name)),
        "data": {FILE: base64.b64encode(build_token(key, pool.uid).encode()).decode()},
    }
