"""The process around a trainer: ports, signals, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal

import transformers
from aiohttp import web

from multigraft.api.base_model_pool import BaseModelPool
from multigraft_trainer.service.bearer_token import BearerToken
from multigraft_trainer.service.control_server import build_app, limit_body_bytes
from multigraft_trainer.service.exit_codes import ExitCode
from multigraft_trainer.service.json_log import EventLog
from multigraft_trainer.service.service_metrics import ServiceMetrics
from multigraft_trainer.service.settings import TrainerSettings
from multigraft_trainer.service.trainer import Trainer

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SHUTDOWN_SECONDS = 2.0  # for calls that are being answered

_log = EventLog(__name__)


class TrainerProcess:
    """Serves one trainer until it is told to stop."""

    def __init__(self, settings: TrainerSettings, pool: BaseModelPool) -> None:
        """Prepare.

        Raises:
            RefusalError: If the token file is not usable.
        """
        self._settings = settings
        self._pool = pool
        self._token = BearerToken(settings.token_file)
        self._metrics = ServiceMetrics(pool)
        self.trainer = Trainer(settings, pool, self._metrics)
        self._metrics.watch_readiness(lambda: self.trainer.is_ready)
        self._done = asyncio.Event()
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # logs are JSON

    async def run(self) -> ExitCode:
        """Open the ports, train until SIGTERM, and give the exit code. A second signal ends the process at once."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        runner = await self._open_ports()
        self.trainer.start(lambda: _set_from_thread(loop, self._done))
        await self._done.wait()
        if self.trainer.exit_code is ExitCode.BAD_CONFIGURATION:
            await asyncio.sleep(self._settings.linger_seconds)  # for the operator to read why
        await runner.cleanup()
        return self.trainer.exit_code

    async def _open_ports(self) -> web.AppRunner:
        settings = self._settings
        metrics_port = self._metrics.engine.serve(settings.metrics_port, host=settings.host)
        app = build_app(self.trainer, self._token, self._metrics, max_body_bytes=limit_body_bytes(self._pool))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        site = web.TCPSite(runner, settings.host, settings.control_port)
        await site.start()
        _log.info("ports are open", controlPort=runner.addresses[0][1], metricsPort=metrics_port)
        return runner

    def _on_signal(self, number: signal.Signals) -> None:
        loop = asyncio.get_running_loop()
        for handled in SIGNALS:  # the next one has its usual effect
            loop.remove_signal_handler(handled)
            signal.signal(handled, signal.SIG_DFL)
        _log.info("stopping at the next step boundary", signal=number.name)
        if not self.trainer.has_jobs_to_save:
            os._exit(ExitCode.STOPPED)  # still loading: nothing to save, and a load cannot be interrupted
        loop.run_in_executor(None, self.trainer.request_stop)


def _set_from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)
