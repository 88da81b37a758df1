"""An HTTP proxy in front of the API server that fails on purpose: kills at a write, and breaks watches."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

WRITES = frozenset({"PATCH", "POST", "PUT", "DELETE"})
EXPIRED = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}


class ApiProxy:
    """Passes everything on to a cluster, with an admin's rights; a context manager.

    Attributes:
        on_write: Called with the number of each write to an object, Leases and Events not counted: once before it is
            passed on (True) and once after that, before it is answered (False).
        watch_fault: What becomes of watches: "" (nothing), "410", "500" or "stall".
        most_watch_events: Events of a watch that are passed on before the fault.
    """

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        content = yaml.safe_load(kubeconfig.read_text())
        cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
        self._server = cluster["server"]
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self.kubeconfig = folder / "proxy.kubeconfig"
        self.on_write: Callable[[int, bool], None] = lambda _number, _before: None
        self.watch_fault = ""
        self.num_writes = self.num_faults = 0
        self._loop = asyncio.new_event_loop()
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()), daemon=True)

    def __enter__(self) -> ApiProxy:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._write_kubeconfig(runner.addresses[0][1])
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    def _write_kubeconfig(self, port: int) -> None:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "proxy", "user": {"token": "not-read"}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(content))

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        is_watch = request.query.get("watch") in {"true", "1"}
        if is_watch and self.watch_fault == "500":
            self.num_faults += 1
            return web.json_response(
                {"kind": "Status", "status": "Failure", "code": 500, "message": "broken"}, status=500
            )
        counted = request.method in WRITES and "/leases" not in request.path and "/events" not in request.path
        number = self._count() if counted else 0
        if counted:
            self.on_write(number, True)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in {"host", "authorization"}}
        async with self._session.request(
            request.method, self._server + request.path_qs, headers=headers, data=await request.read() or None,
            timeout=aiohttp.ClientTimeout(total=None if is_watch else 30),
        ) as answer:  # fmt: skip
            if is_watch:
                with suppress(ConnectionResetError):  # the operator was killed
                    return await self._stream(request, answer)
                return web.Response()
            body = await answer.read()
            if counted:
                self.on_write(number, False)
            kept = {k: v for k, v in answer.headers.items() if k.lower() in {"content-type", "content-encoding"}}
            return web.Response(status=answer.status, body=body, headers=kept)

    def _count(self) -> int:
        self.num_writes += 1
        return self.num_writes

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
        await response.prepare(request)
        async for line in answer.content:
            if self.watch_fault:
                self.num_faults += 1
                await self._fail(response)
                break
            await response.write(line)
        return response

    async def _fail(self, response: web.StreamResponse) -> None:
        if self.watch_fault == "410":
            event: dict[str, Any] = {"type": "ERROR", "object": EXPIRED}
            await response.write(json.dumps(event).encode() + b"\n")
        while self.watch_fault == "stall" and not self._stop.is_set():
            await asyncio.sleep(0.2)
