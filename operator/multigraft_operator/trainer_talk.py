"""Talk to trainers: send a desired set that changed, else ask how things stand."""

from __future__ import annotations

import asyncio
import http
import json
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import aiohttp
from pydantic import ValidationError

from multigraft.api.control import ASSIGNMENTS_PATH, STATE_PATH, ControlError, ControlReason, TrainerState
from multigraft_operator.children.token import build_token
from multigraft_operator.decision import DesiredTrainer
from multigraft_operator.metrics import OperatorMetrics
from multigraft_operator.observed import Talk

CONCURRENCY = 32
TIMEOUT = aiohttp.ClientTimeout(total=5, sock_connect=2)
MAX_PAUSE_SECONDS = 16.0


class StaleEpochError(Exception):
    """A trainer obeys a later leader."""

    def __init__(self, current_epoch: int) -> None:
        super().__init__(f"a trainer has obeyed epoch {current_epoch}")
        self.current_epoch = current_epoch


@dataclass
class _Memory:
    """What is known of the talk with one pod."""

    body: str = ""  # the set that it took last
    start_id: str = ""
    failures: int = 0
    next_try: float = 0.0


class TrainerTalk:
    """Holds one connection pool to all trainers."""

    def __init__(self, key: bytes, control_port: int, metrics: OperatorMetrics, *, poll_seconds: float) -> None:
        self._key, self._port, self._metrics = key, control_port, metrics
        self._poll_seconds = poll_seconds
        self._session = aiohttp.ClientSession(timeout=TIMEOUT)
        self._gate = asyncio.Semaphore(CONCURRENCY)
        self._memory: dict[str, _Memory] = {}
        self._sequence = 0

    async def close(self) -> None:
        await self._session.close()

    async def talk_to_all(self, trainers: tuple[DesiredTrainer, ...]) -> dict[str, Talk]:
        """Talk to those that are due; gives what is known now, by uid of the pod.

        Raises:
            StaleEpochError: If a trainer obeys a later leader.
        """
        present = {trainer.pod.uid for trainer in trainers}
        self._memory = {uid: memory for uid, memory in self._memory.items() if uid in present}
        due = [trainer for trainer in trainers if self._is_due(trainer)]
        talks = await asyncio.gather(*(self._talk(trainer) for trainer in due))
        return {trainer.pod.uid: talk for trainer, talk in zip(due, talks, strict=True)}

    def _is_due(self, trainer: DesiredTrainer) -> bool:
        memory = self._memory.setdefault(trainer.pod.uid, _Memory())
        now = asyncio.get_running_loop().time()
        if memory.failures:
            return now >= memory.next_try
        return now >= memory.next_try or memory.body != _write(trainer)

    async def _talk(self, trainer: DesiredTrainer) -> Talk:
        memory, body = self._memory[trainer.pod.uid], _write(trainer)
        clock = asyncio.get_running_loop()
        async with self._gate:
            try:
                state = await self._exchange(trainer, memory, body)
            except (TimeoutError, aiohttp.ClientError, OSError, ValidationError, ValueError):
                self._metrics.trainer_calls.labels("failed").inc()
                was_put, memory.body = memory.body != body, "" if memory.body != body else memory.body
                memory.failures += 1
                memory.next_try = clock.time() + min(MAX_PAUSE_SECONDS, 2.0 ** min(memory.failures, 5) / 2)
                talk = trainer.pod.talk
                return replace(talk, confirmed=None) if was_put else talk
        self._metrics.trainer_calls.labels("ok").inc()
        memory.failures, memory.next_try = 0, clock.time() + self._poll_seconds
        if memory.start_id != state.start_id:  # a new process: make sure that it has the set
            memory.body, memory.start_id = memory.body if not memory.start_id else "", state.start_id
        told = {job.id.uid for job in trainer.assignments.jobs}
        confirmed = frozenset(told) if memory.body == body else None
        return Talk(state, datetime.now(UTC), confirmed)

    async def _exchange(self, trainer: DesiredTrainer, memory: _Memory, body: str) -> TrainerState:
        state = await self._send(trainer, memory, body)
        if state.epoch > trainer.assignments.epoch:  # a GET is answered whoever asks
            raise StaleEpochError(state.epoch)
        return state

    async def _send(self, trainer: DesiredTrainer, memory: _Memory, body: str) -> TrainerState:
        host = f"[{trainer.pod.address}]" if ":" in trainer.pod.address else trainer.pod.address
        root = f"http://{host}:{self._port}"
        headers = {"Authorization": f"Bearer {build_token(self._key, trainer.assignments.pool.uid)}"}
        if memory.body == body:
            async with self._session.get(root + STATE_PATH, headers=headers) as response:
                return await self._read(response)
        headers["Content-Type"] = "application/json"
        self._sequence = max(self._sequence + 1, time.time_ns() // 1_000_000)  # grows, over restarts in one epoch too
        sent = trainer.assignments.model_copy(update={"sequence": self._sequence})
        data = sent.model_dump_json(by_alias=True, exclude_none=True)
        async with self._session.put(root + ASSIGNMENTS_PATH, data=data.encode(), headers=headers) as response:
            state = await self._read(response)
        memory.body = body
        return state

    async def _read(self, response: aiohttp.ClientResponse) -> TrainerState:
        text = await response.text()
        if response.status == http.HTTPStatus.OK:
            return TrainerState.model_validate_json(text)
        error = ControlError.model_validate_json(text)
        if error.reason is ControlReason.STALE_EPOCH and error.current_epoch is not None:
            raise StaleEpochError(error.current_epoch)
        raise ValueError(f"trainer: {response.status} {error.reason}: {error.message}")


def _write(trainer: DesiredTrainer) -> str:
    return json.dumps(trainer.assignments.model_dump(mode="json", by_alias=True, exclude_none=True), sort_keys=True)
