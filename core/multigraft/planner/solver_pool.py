"""Solver processes with a hard wall-clock budget: whatever they do, the caller goes on in time with a checked packing.

A solve that hangs, dies, floods its pipe or answers nonsense costs its process (the whole group is killed) and its
problem keeps the greedy packing, with a typed reason. Only this file, `solver_process` and `solver_worker` of the
planner read a clock or start processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import sys
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from multigraft.planner.packing_problem import SolverName
from multigraft.planner.solver_process import SolverProcess

WORKER_COMMAND = (sys.executable, "-m", "multigraft.planner.solver_worker")
MAX_WORKERS = 8
GRACE_SECONDS = 0.5  # beyond its limit that a solve may take to come back before its process is killed
MIN_SOLVE_SECONDS = 0.02
CANCEL_SECONDS = 0.1  # between looks at whether the solve was cancelled
MAX_STARTS = 4  # of one worker in one call; a solver that dies each time is left alone after that


class SolveFailure(StrEnum):
    """Why a problem kept its greedy packing although a solver was asked."""

    TIMEOUT = "Timeout"  # no reply within the budget
    DIED = "Died"  # the process ended or could not be started
    GARBAGE = "Garbage"  # the reply is not the agreed JSON
    WRONG = "Wrong"  # the reply is a packing that breaks the problem's rules
    ERROR = "Error"  # the solver is missing or refused the problem


Reply = TypeVar("Reply")
ReplyOut = TypeVar("ReplyOut", covariant=True)


class SolverTask(Protocol[ReplyOut]):
    """A problem as the pool needs it."""

    def to_json(self) -> dict[str, Any]:
        """Give the problem as a worker reads it; its `kind` says which solver function it is for."""
        ...

    def read_reply(self, message: dict[str, Any]) -> ReplyOut:
        """Read and check what a worker says.

        Raises:
            KeyError: If a field is missing or has another type.
            ValueError: If the solution breaks a rule of the problem.
        """
        ...


@dataclass(frozen=True)
class Solved(Generic[Reply]):
    """What came of one problem: a checked reply, or a failure and what is known of it."""

    reply: Reply | None
    failure: SolveFailure | None = None
    detail: str = ""


@dataclass(frozen=True)
class SolvedBatch(Generic[Reply]):
    """What came of all problems of one call, in their order, and how long it took."""

    solved: list[Solved[Reply]]
    seconds: float


class SolverPool:
    """Solver processes, started when first needed, one thread each.

    Args:
        num_workers: Processes; default: one per CPU that this process may use, at most `MAX_WORKERS`.
        solver: HiGHS or CBC.
        cbc_path: CBC's binary; default: the one that PuLP brings.
        command: Program of a worker.

    Raises:
        ValueError: If `num_workers` is below 1.
    """

    def __init__(
        self,
        *,
        num_workers: int | None = None,
        solver: SolverName = SolverName.HIGHS,
        cbc_path: str | None = None,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        count = num_workers if num_workers is not None else min(MAX_WORKERS, len(os.sched_getaffinity(0)))
        if count < 1:
            raise ValueError(f"num_workers: got {count}, allowed 1 or more")
        self.solver = solver
        self.cbc_path = cbc_path
        self.workers = [SolverProcess(command) for _ in range(count)]
        self.is_cancelled = False
        self._finalizer = weakref.finalize(self, _kill_all, self.workers)

    def cancel(self) -> None:
        """Let a `solve` that runs in another thread come back soon, and every later one at once."""
        self.is_cancelled = True

    def close(self) -> None:
        """End all processes; not while `solve` runs. A later `solve` starts fresh ones."""
        _kill_all(self.workers)

    def __enter__(self) -> SolverPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def solve(self, tasks: Sequence[SolverTask[Reply]], *, budget_seconds: float) -> SolvedBatch[Reply]:
        """Solve the problems side by side; come back within the budget plus `GRACE_SECONDS`.

        The time that is left is shared by the problems that are left.
        """
        start = time.monotonic()
        solved = _Run(self, tasks, start + budget_seconds).run()
        return SolvedBatch(solved, time.monotonic() - start)


def _kill_all(workers: Sequence[SolverProcess]) -> None:
    for worker in workers:
        worker.kill()


class _Run(Generic[Reply]):
    """One call of `SolverPool.solve`: an event loop over the pipes of all workers."""

    def __init__(self, pool: SolverPool, tasks: Sequence[SolverTask[Reply]], deadline: float) -> None:
        self.pool = pool
        self.tasks = tasks
        self.deadline = deadline
        self.todo = deque(range(len(tasks)))
        self.solved: dict[int, Solved[Reply]] = {}
        self.starts_left = dict.fromkeys(pool.workers, MAX_STARTS)
        self.unserved: Solved[Reply] = Solved(None, SolveFailure.TIMEOUT, "the budget ended before its turn")

    def run(self) -> list[Solved[Reply]]:
        with selectors.DefaultSelector() as self.selector:
            for worker in self.pool.workers:
                self._give_next(worker)
            while any(worker.problem is not None for worker in self.pool.workers):
                self._wait()
                if self.pool.is_cancelled:
                    _kill_all([worker for worker in self.pool.workers if worker.problem is not None])
        return [self.solved.get(index, self.unserved) for index in range(len(self.tasks))]

    def _give_next(self, worker: SolverProcess) -> None:
        now = time.monotonic()
        if not self.todo or self.pool.is_cancelled or self.deadline - now < MIN_SOLVE_SECONDS:
            return
        share = (self.deadline - now) * len(self.pool.workers) / len(self.todo)
        seconds = min(self.deadline - now, max(MIN_SOLVE_SECONDS, share))
        limit = now + seconds if worker.is_alive else self.deadline  # a fresh process has to import the solver first
        if not self._start(worker):
            return
        worker.problem = self.todo.popleft()
        worker.kill_at = min(limit, self.deadline) + GRACE_SECONDS
        worker.post(self._build_request(worker.problem, seconds))
        stdin, stdout = worker.descriptors
        self._watch(stdin, selectors.EVENT_WRITE, worker)
        self._watch(stdout, selectors.EVENT_READ, worker)

    def _start(self, worker: SolverProcess) -> bool:
        if worker.is_alive:
            return True
        if not self.starts_left[worker]:
            self.unserved = Solved(None, SolveFailure.DIED, f"the solver process ended {MAX_STARTS} times")
            return False
        self.starts_left[worker] -= 1
        try:
            worker.start()
        except OSError as error:
            self.unserved = Solved(None, SolveFailure.DIED, f"cannot start {worker.command[0]}: {error.strerror}")
            return False
        return True

    def _build_request(self, index: int, seconds: float) -> bytes:
        request = {
            "id": index,
            "problem": self.tasks[index].to_json(),
            "solver": self.pool.solver.value,
            "seconds": seconds,
            "cbcPath": self.pool.cbc_path,
        }
        return json.dumps(request).encode() + b"\n"

    def _watch(self, descriptor: int, events: int, worker: SolverProcess) -> None:
        with contextlib.suppress(KeyError):  # watched since this worker's problem before
            self.selector.unregister(descriptor)
        self.selector.register(descriptor, events, worker)

    def _wait(self) -> None:
        busy = [worker for worker in self.pool.workers if worker.problem is not None]
        timeout = min(CANCEL_SECONDS, max(0.0, min(worker.kill_at for worker in busy) - time.monotonic()))
        for key, events in self.selector.select(timeout):
            if key.fileobj in self.selector.get_map():  # else its process was killed a moment ago
                self._serve(key.data, key.fd, events)
        now = time.monotonic()
        for worker in busy:
            if worker.problem is not None and now >= worker.kill_at:
                self._fail(worker, SolveFailure.TIMEOUT, "no reply within its limit")

    def _serve(self, worker: SolverProcess, descriptor: int, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                if worker.flush():
                    self.selector.unregister(descriptor)
                return
            for line in worker.read_lines():
                self._take_line(worker, line)
        except ValueError as error:
            self._fail(worker, SolveFailure.GARBAGE, str(error))
        except (OSError, EOFError) as error:
            self._fail(worker, SolveFailure.DIED, f"the process is gone: {error}")

    def _take_line(self, worker: SolverProcess, line: bytes) -> None:
        try:
            message = json.loads(line)
        except RecursionError as error:
            raise ValueError("the reply is nested too deeply") from error
        if message == {"ready": True}:
            return
        if worker.problem is None or not isinstance(message, dict) or message.get("id") != worker.problem:
            raise ValueError("the reply does not belong to a problem")
        index, worker.problem = worker.problem, None
        self.solved[index] = _judge(self.tasks[index], message)
        self._give_next(worker)

    def _fail(self, worker: SolverProcess, failure: SolveFailure, detail: str) -> None:
        if worker.problem is not None:
            self.solved[worker.problem] = Solved(None, failure, detail)
        for descriptor in worker.descriptors:
            with contextlib.suppress(KeyError):
                self.selector.unregister(descriptor)
        worker.kill()
        self._give_next(worker)


def _judge(task: SolverTask[Reply], message: dict[str, Any]) -> Solved[Reply]:
    if "error" in message:
        return Solved(None, SolveFailure.ERROR, str(message["error"])[:300])
    try:
        return Solved(task.read_reply(message))
    except (KeyError, TypeError) as error:
        return Solved(None, SolveFailure.GARBAGE, f"the reply lacks {error}"[:300])
    except ValueError as error:
        return Solved(None, SolveFailure.WRONG, str(error)[:300])
