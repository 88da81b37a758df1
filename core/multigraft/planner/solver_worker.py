"""A solver process: reads packing problems as JSON lines, writes replies as JSON lines, dies with its parent.

Started by `solver_pool` as leader of its own process group, which it kills when the parent is gone: a solver that runs
as a grandchild (CBC) goes with it. The solvers' own output is kept off the reply stream.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import sys
import threading
from typing import Any, BinaryIO

from multigraft.planner.milp import build_solver, solve_packing
from multigraft.planner.packing_problem import SolverName
from multigraft.planner.packing_task import PACKING, read_packing_problem
from multigraft.planner.placement_formulation import solve_placement
from multigraft.planner.placement_milp import PLACEMENT, read_placement_problem

PARENT_CHECK_SECONDS = 1.0
NICENESS = 5  # training on the same cores goes first


def main() -> None:
    """Serve until the parent closes the pipe or is gone."""
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.nice(NICENESS)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests, os.getppid()), daemon=True).start()
    _send(replies, {"ready": True})
    while True:
        _send(replies, _serve(json.loads(requests.get())))


def _serve(request: dict[str, Any]) -> dict[str, Any]:
    try:
        solve = {PACKING: _solve_packing, PLACEMENT: _solve_placement}[request["problem"]["kind"]]
        return {"id": request["id"], **solve(request)}
    except Exception as error:  # noqa: BLE001 - whatever a solver library raises, the parent falls back to greedy
        return {"id": request["id"], "error": f"{type(error).__name__}: {error}"[:300]}


def _solve_packing(request: dict[str, Any]) -> dict[str, Any]:
    reply = solve_packing(
        read_packing_problem(request["problem"]),
        solver=SolverName(request["solver"]),
        time_limit_seconds=request["seconds"],
        cbc_path=request["cbcPath"],
    )
    return {
        "binOf": list(reply.bin_of),
        "fewestProved": reply.fewest_proved,
        "smallestProved": reply.smallest_proved,
    }


def _solve_placement(request: dict[str, Any]) -> dict[str, Any]:
    placed = solve_placement(
        read_placement_problem(request["problem"]),
        solver=build_solver(SolverName(request["solver"]), request["seconds"], request["cbcPath"]),
    )
    return {"roomOf": placed}


def _read_requests(requests: queue.SimpleQueue[bytes], parent: int) -> None:
    buffer = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], PARENT_CHECK_SECONDS)[0]:
            continue
        chunk = os.read(0, 1 << 16)
        if not chunk:
            break
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            requests.put(line)
    _die()


def _die() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _send(replies: BinaryIO, message: dict[str, Any]) -> None:
    try:
        replies.write(json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    main()
