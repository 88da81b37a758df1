"""What the operator process is told from outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from multigraft_operator.children.options import ChildOptions
from multigraft_operator.children.token import MIN_KEY_BYTES
from multigraft_operator.observed import Policy


@dataclass(frozen=True)
class OperatorSettings:
    """Everything that one operator process is told."""

    key: bytes  # tokens of all pools are derived from it
    namespace: str = "multigraft-system"  # its own: the Lease lies there
    watch_namespaces: tuple[str, ...] = ()  # none: all
    lease_name: str = "multigraft-operator"
    identity: str = "operator"
    is_standalone: bool = False
    http_port: int = 8081  # probes and metrics
    poll_seconds: float = 3.0
    relist_seconds: float = 25.0
    reapply_seconds: float = 300.0
    children: ChildOptions = field(default_factory=ChildOptions)
    policy: Policy = field(default_factory=Policy)


def read_key(path: Path) -> bytes:
    """Read the operator's key.

    Raises:
        ValueError: If the file cannot be read or is too short.
    """
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"--key-file {path}: {error.strerror}") from None
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"--key-file {path}: got {len(key)} bytes, want at least {MIN_KEY_BYTES}")
    return key
