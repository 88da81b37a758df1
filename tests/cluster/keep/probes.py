"""Ways to see whether a part of the cluster serves yet."""

import http.client
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 2.0


class Probe(Protocol):
    """Something to ask."""

    def holds(self) -> bool:
        """Tell whether the part serves. Never raises."""
        ...


@dataclass(frozen=True)
class Answers:
    """A server answers 200 at `url`, over TLS without looking at its certificate where the scheme says so.

    `certificate` and `key` are shown to the server where it asks who is there.
    """

    url: str
    certificate: Path | None = None
    key: Path | None = None

    def holds(self) -> bool:
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port or 0
        connection = (
            http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=self._context())
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        )
        try:
            connection.request("GET", parts.path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _context(self) -> ssl.SSLContext:
        # Several parts make up a certificate of their own at start: all that matters here is that they answer.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(frozen=True)
class Listens:
    """Something accepts connections on a Unix socket."""

    path: Path

    def holds(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(TIMEOUT_SECONDS)
            try:
                client.connect(str(self.path))
            except OSError:
                return False
        return True
