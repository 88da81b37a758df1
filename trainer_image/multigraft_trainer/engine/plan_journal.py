"""Every plan that ran, kept so that a resumed pool runs the same plans again, whatever the solver would find today.

A plan's file is named for the work it covers, so it is found again exactly when the same jobs stand at the same steps.
A plan that is read back is verified like a new one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from multigraft.planner.plan import JobWork, Plan, PlanLimits
from multigraft.planner.verify import verify_plan
from multigraft_trainer.checkpoints.records import parse_json
from multigraft_trainer.storage.durable_files import read_small_file, refuse_if_not_writable

_MAX_BYTES = 256 * 1024 * 1024  # a plan of 100,000 samples is about 10 MB


class PlanJournal:
    """Plans on disk, in generations: one for the time between two pool checkpoints."""

    def __init__(self, folder: Path, *, keep_generations: int) -> None:
        self._folder = folder
        self._keep = keep_generations
        with refuse_if_not_writable(f"plan journal {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        self._generations: list[set[Path]] = [set(folder.glob("plan-*.json")), set()]

    def load(self, work: Sequence[JobWork], limits: PlanLimits) -> Plan | None:
        """Give the plan that ran for this work; None if there is none or it is damaged."""
        path = self._path(work, limits)
        try:
            plan = Plan.from_json(parse_json(read_small_file(path, max_bytes=_MAX_BYTES)))  # never waits on a FIFO
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if plan.limits != limits or verify_plan(plan, work):
            return None
        self._generations[-1].add(path)
        return plan

    def save(self, work: Sequence[JobWork], plan: Plan) -> None:
        """Write the plan before it runs, whole or not at all."""
        path = self._path(work, plan.limits)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(plan.to_json(), separators=(",", ":")), encoding="utf-8")
        temporary.replace(path)
        self._generations[-1].add(path)

    def start_generation(self) -> None:
        """Tell that the pool was saved: plans from before the oldest checkpoint that is kept are not needed again."""
        self._generations.append(set())
        while len(self._generations) > self._keep + 1:
            for path in self._generations.pop(0) - set().union(*self._generations):
                with suppress(OSError):
                    path.unlink()

    def _path(self, work: Sequence[JobWork], limits: PlanLimits) -> Path:
        data = json.dumps([asdict(limits), sorted((asdict(job) for job in work), key=lambda job: str(job["job"]))])
        return self._folder / f"plan-{hashlib.sha256(data.encode()).hexdigest()[:32]}.json"
