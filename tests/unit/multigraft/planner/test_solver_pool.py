"""Solvers that lie, hang, die or talk nonsense; real processes, real kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.packing_problems import make_problem, make_random_problem
from multigraft.planner.packing_check import find_packing_fault
from multigraft.planner.packing_problem import PackingProblem, SolverName
from multigraft.planner.packing_task import PackingTask
from multigraft.planner.solver_pool import GRACE_SECONDS, SolveFailure, SolverPool

HARD = PackingTask(make_problem([35, 28, 24, 23, 19, 18, 16, 13], capacity=60))  # greedy 4 bins, best 3

PREAMBLE = """
import json, os, signal, subprocess, sys, time
def requests():
    for line in sys.stdin:
        yield json.loads(line)
def reply(**fields):
    print(json.dumps(fields), flush=True)
def pack(request, bins):
    reply(id=request["id"], binOf=bins, fewestProved=True, smallestProved=True)
"""
STUBS: dict[str, tuple[str, SolveFailure]] = {
    "hangs": ("time.sleep(600)", SolveFailure.TIMEOUT),
    "hangs and ignores SIGTERM": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        SolveFailure.TIMEOUT,
    ),
    "hangs in a child of its own": ("subprocess.run(['sleep', '600'])", SolveFailure.TIMEOUT),
    "dies at once": ("sys.exit(3)", SolveFailure.DIED),
    "dies on the request": ("for _ in requests(): os.kill(os.getpid(), signal.SIGSEGV)", SolveFailure.DIED),
    "answers text": ("for _ in requests(): print('Optimal', flush=True)", SolveFailure.GARBAGE),
    "answers bytes": ("for _ in requests(): os.write(1, bytes(range(256)))", SolveFailure.GARBAGE),
    "answers deep nesting": ("for _ in requests(): print('[' * 100000, flush=True)", SolveFailure.GARBAGE),
    "answers without end": (
        "for _ in requests():\n  while True: os.write(1, b'x' * 65536)",
        SolveFailure.GARBAGE,
    ),
    "answers another problem": (
        "for r in requests(): reply(id=r['id'] + 1, binOf=[], fewestProved=True, smallestProved=True)",
        SolveFailure.GARBAGE,
    ),
    "answers half a reply": ("for r in requests(): reply(id=r['id'], binOf=[0])", SolveFailure.GARBAGE),
    "says optimal with everything in one bin": (
        "for r in requests(): pack(r, [0] * len(r['problem']['lengths']))",
        SolveFailure.WRONG,
    ),
    "leaves a sample out": ("for r in requests(): pack(r, r['problem']['greedy'][:-1])", SolveFailure.WRONG),
    "gives more bins than greedy": (
        "for r in requests(): pack(r, list(range(len(r['problem']['lengths']))))",
        SolveFailure.WRONG,
    ),
    "reports an error": ("for r in requests(): reply(id=r['id'], error='no licence')", SolveFailure.ERROR),
}


@pytest.fixture
def stub_pool(tmp_path: Path) -> Callable[[str], SolverPool]:
    def build(code: str, num_workers: int = 1) -> SolverPool:
        program = tmp_path / "stub.py"
        program.write_text(PREAMBLE + code)
        return SolverPool(num_workers=num_workers, command=(sys.executable, str(program)))

    return build


@pytest.mark.parametrize("name", STUBS)
def test_a_bad_solver_never_gets_a_packing_through(name: str, stub_pool: Callable[[str], SolverPool]) -> None:
    code, want = STUBS[name]
    with stub_pool(code) as pool:
        got = pool.solve([HARD, HARD], budget_seconds=1.0).solved
    assert [one.reply for one in got] == [None, None]
    assert got[0].failure is want
    assert all(one.detail for one in got)


def test_a_solver_that_never_reads_does_not_block_the_caller(stub_pool: Callable[[str], SolverPool]) -> None:
    lengths = [3] * 20_000
    large = PackingTask(
        PackingProblem(tuple(lengths), (0,) * 20_000, 8, 1, 1, tuple(range(20_000)))
    )  # a request of more bytes than a pipe takes
    with stub_pool("time.sleep(600)") as pool:
        assert pool.solve([large], budget_seconds=1.0).solved[0].failure is SolveFailure.TIMEOUT


def test_G05_a_sleeping_solver_is_killed_with_its_whole_group_within_the_limit(
    tmp_path: Path, stub_pool: Callable[[str], SolverPool]
) -> None:
    marker = f"{tmp_path.name}"
    pool = stub_pool(f"subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)', '{marker}'])")
    started = time.monotonic()
    got = pool.solve([HARD], budget_seconds=1.0).solved
    assert got[0].failure is SolveFailure.TIMEOUT
    assert time.monotonic() - started < 1.0 + GRACE_SECONDS + 5  # wide: the machine may be busy
    assert wait_until(lambda: not find_processes(marker), seconds=5)


def test_G06_no_solver_is_left_after_its_parent_was_killed(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        "import sys, threading, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[3])!r})\n"
        "from builders.packing_problems import make_random_problem\n"
        "from multigraft.planner.packing_task import PackingTask\n"
        "from multigraft.planner.solver_pool import SolverPool\n"
        "pool = SolverPool(num_workers=1)\n"
        "problem = make_random_problem(1, num_samples=120, num_adapters=4, capacity=4096, tile=64)\n"
        "solve = lambda: pool.solve([PackingTask(problem)], budget_seconds=300)\n"
        "threading.Thread(target=solve, daemon=True).start()\n"
        "while pool.workers[0]._process is None or pool.workers[0]._outbox: time.sleep(0.05)\n"
        "time.sleep(1)\n"
        "print(pool.workers[0]._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert is_running(worker)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not is_running(worker), seconds=5)


@pytest.mark.parametrize("break_it", ["remove", "chmod"])
def test_G10_without_a_solver_binary_the_problem_keeps_greedy_and_says_why(break_it: str, tmp_path: Path) -> None:
    binary = tmp_path / "cbc"
    if break_it == "chmod":
        binary.write_text("#!/bin/sh\nexit 0\n")
        binary.chmod(0o644)
    with SolverPool(num_workers=1, solver=SolverName.CBC, cbc_path=str(binary)) as pool:
        (got,) = pool.solve([HARD], budget_seconds=20).solved
    assert got.failure is SolveFailure.ERROR
    assert "cbc" in got.detail.lower()


def test_a_worker_that_cannot_be_started_fails_every_problem_by_name() -> None:
    with SolverPool(num_workers=2, command=("/no/such/program",)) as pool:
        got = pool.solve([HARD] * 5, budget_seconds=5).solved
    assert {one.failure for one in got} == {SolveFailure.DIED}
    assert got[0].detail.startswith("cannot start /no/such/program")


def test_a_solver_that_dies_each_time_is_left_alone_after_a_few_starts(
    stub_pool: Callable[[str], SolverPool],
) -> None:
    with stub_pool("sys.exit(1)") as pool:
        got = pool.solve([HARD] * 50, budget_seconds=30).solved
    assert {one.failure for one in got} == {SolveFailure.DIED}
    assert "ended 4 times" in got[-1].detail


@pytest.mark.parametrize("solver", list(SolverName))
def test_real_solvers_answer_many_problems_side_by_side(solver: SolverName) -> None:
    problems = [make_random_problem(i, num_samples=8, num_adapters=2, capacity=64, tile=8) for i in range(12)]
    with SolverPool(num_workers=2, solver=solver) as pool:
        for _ in range(2):  # the processes are kept
            batch = pool.solve([*map(PackingTask, problems), HARD], budget_seconds=60)
            assert [one.failure for one in batch.solved] == [None] * 13
            assert len(set(batch.solved[-1].reply.bin_of)) == 3
            for problem, one in zip(problems, batch.solved, strict=False):
                assert find_packing_fault(problem, one.reply.bin_of) is None


def test_a_worker_killed_from_outside_is_replaced() -> None:
    with SolverPool(num_workers=1) as pool:
        assert pool.solve([HARD], budget_seconds=60).solved[0].failure is None
        os.kill(pool.workers[0]._process.pid, signal.SIGKILL)
        assert wait_until(lambda: not pool.workers[0].is_alive, seconds=5)
        assert pool.solve([HARD], budget_seconds=60).solved[0].failure is None


def test_no_problems_and_no_time_cost_nothing() -> None:
    pool = SolverPool(num_workers=1)
    assert pool.solve([], budget_seconds=5).solved == []
    assert pool.solve([HARD], budget_seconds=0).solved[0].failure is SolveFailure.TIMEOUT
    assert pool.workers[0]._process is None
    with pytest.raises(ValueError, match="num_workers: got 0"):
        SolverPool(num_workers=0)


def test_processes_end_with_the_pool() -> None:
    pool = SolverPool(num_workers=1)
    pool.solve([HARD], budget_seconds=60)
    pid = pool.workers[0]._process.pid
    del pool
    assert wait_until(lambda: not is_running(pid), seconds=5)


def find_processes(marker: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in command and b"time.sleep(600)" in command:
                found.append(int(folder.name))
    return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
