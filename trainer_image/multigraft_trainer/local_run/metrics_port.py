"""Where a local run serves its metrics: on this machine alone, as nothing guards the port."""

from __future__ import annotations

import socket

from multigraft.api.reasons import Reason, RefusalError

METRICS_HOST = "127.0.0.1"


def check_port_is_free(port: int) -> None:
    """Refuse a port that is taken, before anything is loaded or written.

    Raises:
        RefusalError: INVALID_SPEC, naming the port.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((METRICS_HOST, port))
        except OSError as error:
            text = f"--metrics-port {port}: {error.strerror or error}; 0 takes a free port"
            raise RefusalError(Reason.INVALID_SPEC, text) from None
