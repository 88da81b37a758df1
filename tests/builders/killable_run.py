"""A pool run in a child process that kills itself with SIGKILL before a chosen file operation or microbatch."""

from __future__ import annotations

import json
import os
import signal
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from builders.pool_run import PoolRun, open_pool

FILE_EVENTS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "shutil.rmtree"})

_context = get_context("forkserver")  # a server with torch imported forks each child in milliseconds
_context.set_forkserver_preload(["builders.killable_run", "builders.resume_jobs"])


class KillPoint:
    """Counts file operations below a folder and microbatches; at number `at` the process is gone."""

    def __init__(self, folder: Path, at: int | None) -> None:
        self.count = 0
        self._folder = str(folder)
        self._at = at
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event in FILE_EVENTS and args and str(args[0]).startswith(self._folder):
            self.pass_by()

    def pass_by(self) -> None:
        if self.count == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


def run_until_killed(base: Path, folder: Path, *, at: int | None, resume: bool) -> int | None:
    """Run the jobs of `resume_jobs` below `folder`; kill the run at point `at`, or never.

    Returns:
        The number of points that the run passed, or None if it was killed.
    """
    child = _context.Process(target=_run, args=(base, folder, at, resume))
    child.start()
    child.join()
    if child.exitcode == -signal.SIGKILL:
        return None
    assert child.exitcode == 0, f"the child ended with {child.exitcode}"
    return int(json.loads((folder / "points.json").read_text())["points"])


def _run(base: Path, folder: Path, at: int | None, resume: bool) -> None:
    import torch

    from builders.resume_jobs import make_resume_jobs

    torch.set_num_threads(1)
    point = KillPoint(folder, at)
    pool = open_pool(base, folder, resume=resume, checkpoint_interval_steps=1, horizon_global_batches=2)
    _watch_microbatches(pool, point)
    for job in make_resume_jobs(list(pool.backend.linears), folder):
        pool.submit(job)
    pool.engine.run()
    losses = {key: [record.loss for record in result.history] for key, result in pool.results.items()}
    points = point.count
    (folder / "points.json").write_text(json.dumps({"points": points}))
    (folder / "losses.json").write_text(json.dumps(losses))


def _watch_microbatches(pool: PoolRun, point: KillPoint) -> None:
    run = pool.backend.forward_backward

    def forward_backward(microbatch: Any, **options: Any) -> list[float]:
        point.pass_by()
        losses = run(microbatch, **options)
        point.pass_by()
        return losses

    pool.backend.forward_backward = forward_backward  # type: ignore[method-assign]
