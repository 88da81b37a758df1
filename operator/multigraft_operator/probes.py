"""Liveness, readiness and metrics over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from multigraft_operator.metrics import OperatorMetrics

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class ProbeServer:
    """Answers /healthz, /readyz and /metrics; a probe gives a reason why not, or an empty text."""

    def __init__(
        self,
        metrics: OperatorMetrics,
        *,
        find_illness: Callable[[], str],
        find_unreadiness: Callable[[], str],
        before_metrics: Callable[[], None] = lambda: None,
    ) -> None:
        self._metrics = metrics
        self._find_illness, self._find_unreadiness = find_illness, find_unreadiness
        self._before_metrics = before_metrics

    async def run(self, port: int) -> None:
        """Serve until cancelled."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104 (kubelet and Prometheus come from outside)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self._find_illness())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self._find_unreadiness())

    async def _render(self, _: web.Request) -> web.Response:
        self._before_metrics()
        return web.Response(body=self._metrics.render(), headers={"Content-Type": TEXT})


def _answer(reason: str) -> web.Response:
    return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")
