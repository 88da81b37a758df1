"""Fake trainers in a process of their own: `serve_trainers.py PORT SLOTS`, told of pods on standard input.

Each line `ADDRESS POD NAMESPACE/POOL` begins a trainer there; the empty line asks for what they have, answered by a
line of JSON: jobs held now, jobs ever given, seconds of the monotonic clock at which the last new one came.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from aiohttp import web

from builders.operator_world import PlainTrainer
from multigraft.api.control import ASSIGNMENTS_PATH, STATE_PATH, Assignments


class Trainers:
    """All fake trainers."""

    def __init__(self, port: int, slots: int) -> None:
        self._port, self._slots = port, slots
        self._trainers: list[PlainTrainer] = []
        self._ever: set[str] = set()
        self._last_new = 0.0
        self._calls = 0

    async def begin(self, address: str, pod: str, pool: str) -> None:
        trainer = PlainTrainer(pod, pool, slots=self._slots)
        self._trainers.append(trainer)

        async def put(request: web.Request) -> web.Response:
            wanted = Assignments.model_validate_json(await request.text())
            new = {job.id.uid for job in wanted.jobs} - self._ever
            if new:
                self._ever |= new
                self._last_new = time.monotonic()
            trainer.take(wanted)
            return await get(request)

        async def get(_: web.Request) -> web.Response:
            self._calls += 1
            text = trainer.state().model_dump_json(by_alias=True, exclude_none=True)
            return web.Response(text=text, content_type="application/json")

        app = web.Application(client_max_size=64 << 20)
        app.router.add_put(ASSIGNMENTS_PATH, put)
        app.router.add_get(STATE_PATH, get)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, address, self._port).start()

    def tell(self) -> str:
        held = sum(len(trainer.jobs) for trainer in self._trainers)
        return json.dumps({"held": held, "ever": len(self._ever), "last_new": self._last_new, "calls": self._calls})


async def serve(port: int, slots: int) -> None:
    trainers = Trainers(port, slots)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        words = line.decode().split()
        if words:
            await trainers.begin(*words)
        print(trainers.tell(), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
