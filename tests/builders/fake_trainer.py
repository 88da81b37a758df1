"""A trainer without training: a real HTTP server that speaks the control protocol, at an address of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from builders.operator_world import PlainTrainer
from multigraft.api.control import ASSIGNMENTS_PATH, STATE_PATH, Assignments, TrainerJobPhase


class FakeTrainer:
    """Serves one `PlainTrainer`; the test changes it and sees what was asked."""

    def __init__(self, address: str, port: int, *, pod: str, pool: str, slots: int = 2) -> None:
        self.address, self.port = address, port
        self.trainer = PlainTrainer(pod, pool, slots=slots)
        self.tokens: set[str] = set()
        self.puts = 0
        self.ever: set[tuple[str, int]] = set()  # (uid, attempt) that it was ever given
        self.refused = 0  # sets of an earlier epoch
        self.drop_answers = 0  # so many next answers are lost after the request was obeyed
        self.lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FakeTrainer:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def say(self, uid: str, phase: TrainerJobPhase, **fields: Any) -> None:
        with self.lock:
            self.trainer.say(uid, phase, **fields)

    def finish(self, uid: str) -> None:
        """Let a job succeed."""
        self.say(
            uid,
            TrainerJobPhase.SUCCEEDED,
            step=10,
            output_uri=f"/output/{uid}",
            output_digest="sha256:0",
            output_bytes=1,
        )

    def has(self, uid: str) -> bool:
        with self.lock:
            return uid in self.trainer.jobs

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_put(ASSIGNMENTS_PATH, self._guard(self._put))
        app.router.add_get(STATE_PATH, self._guard(self._get))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self.address, self.port).start()
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def _guard(self, handler: Callable[[web.Request], Any]) -> Callable[[web.Request], Any]:
        async def guarded(request: web.Request) -> web.StreamResponse:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if scheme != "Bearer" or len(token) < 16:
                return _refuse(401, "Unauthenticated")
            self.tokens.add(token)
            if not self.trainer.is_reachable:
                return _refuse(500, "InternalError")
            answer: web.StreamResponse = await handler(request)
            if self.drop_answers > 0:
                self.drop_answers -= 1
                assert request.transport is not None
                request.transport.abort()
            return answer

        return guarded

    async def _put(self, request: web.Request) -> web.StreamResponse:
        try:
            wanted = Assignments.model_validate_json(await request.text())
        except ValidationError as error:
            return _refuse(422, "InvalidRequest", message=str(error)[:500])
        with self.lock:
            if wanted.epoch < self.trainer.epoch:
                self.refused += 1
                return _refuse(409, "StaleEpoch", currentEpoch=self.trainer.epoch)
            self.puts += 1
            self.ever |= {(job.id.uid, job.attempt) for job in wanted.jobs}
            self.trainer.take(wanted)
        return await self._get(request)

    async def _get(self, _: web.Request) -> web.StreamResponse:
        with self.lock:
            text = self.trainer.state().model_dump_json(by_alias=True, exclude_none=True)
        return web.Response(text=text, content_type="application/json")


def _refuse(status: int, reason: str, message: str = "refused", **fields: Any) -> web.Response:
    return web.json_response({"reason": reason, "message": message, **fields}, status=status)
