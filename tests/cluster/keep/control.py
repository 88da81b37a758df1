"""How a test tells a running cluster to stop or start one of its parts: one JSON line each way, on a socket."""

import json
import socket
import socketserver
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGTERM

ANSWER_TIMEOUT_SECONDS = 180.0
IDLE_SECONDS = 0.2


class ControlError(RuntimeError):
    """The cluster could not do what it was asked; the text says why."""


@dataclass(frozen=True)
class Request:
    """Something to do with one component: `action` is start or stop."""

    action: str
    component: str
    signal_number: int = SIGTERM


class ControlServer(socketserver.UnixStreamServer):
    """Takes one request at a time. `handle_request` returns after 0.2 s if there is none."""

    timeout = IDLE_SECONDS

    def __init__(self, path: Path, handle: Callable[[Request], None]) -> None:
        self.do = handle
        super().__init__(str(path), _Handler)


class _Handler(socketserver.StreamRequestHandler):
    server: ControlServer

    def handle(self) -> None:
        line = self.rfile.readline()
        if not line:
            return
        try:
            self.server.do(Request(**json.loads(line)))
            answer = {"error": ""}
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            answer = {"error": str(error)}
        self.wfile.write(json.dumps(answer).encode() + b"\n")


def send_request(path: Path, request: Request) -> None:
    """Send a request and wait until it is carried out.

    Raises:
        ControlError: If it was not.
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(ANSWER_TIMEOUT_SECONDS)
        client.connect(str(path))
        client.sendall(json.dumps(asdict(request)).encode() + b"\n")
        with client.makefile("rb") as answers:
            answer = answers.readline()
    error = json.loads(answer)["error"] if answer else "the cluster ended before it answered"
    if error:
        raise ControlError(f"{request.action} {request.component}: {error}")
