from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from builders.jobs import make_job, make_samples, prepare
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.control import Assignments
from multigraft_trainer.engine.job_run import PreparedJob
from multigraft_trainer.engine.pool_state import PoolPaths, PoolState
from multigraft_trainer.service.desired_set import DesiredSet
from multigraft_trainer.service.figures import Figures
from multigraft_trainer.service.job_table import JobTable

POOL = BaseModelPool.model_validate(
    {
        "apiVersion": "multigraft.dev/v1alpha1",
        "kind": "BaseModelPool",
        "metadata": {"name": "p", "namespace": "team-a", "uid": "u-1"},
        "spec": {"baseModel": {"storageUri": "base"}},
    }
)


@dataclass
class RunningJobs:
    """What the table sees of an engine: the jobs that it holds."""

    keys: dict[str, Any] = field(default_factory=dict)
    waiting: tuple[Any, ...] = ()

    @property
    def running(self) -> list[Any]:
        return [SimpleNamespace(key=key) for key in self.keys]

    def submit(self, job: PreparedJob) -> None:
        self.keys[job.key] = job

    def remove(self, key: str) -> None:
        assert key in self.keys

    def update(self, job: Any) -> None:
        assert job.key in self.keys


def make_set(epoch: int, *names: str, **spec: Any) -> Assignments:
    own = {"poolRef": {"name": "p"}, "dataset": {"storageUri": "a.jsonl"}, "training": {"maxSteps": 3}, **spec}
    jobs = [{"id": {"namespace": "team-a", "name": name, "uid": "x"}, "generation": 1, "spec": own} for name in names]
    pool = {"namespace": "team-a", "name": "p", "uid": "u-1"}
    return Assignments.model_validate({"epoch": epoch, "pool": pool, "jobs": jobs})


def test_a_boundary_is_wanted_while_a_job_is_to_join_or_leave_and_at_no_other_time(tmp_path: Path) -> None:
    table = JobTable(DesiredSet(POOL, "pod-0", tmp_path / "state"), Figures(), num_slots=2)
    table.open(PoolState(PoolPaths(tmp_path / "checkpoints", tmp_path / "plans"), keep_last=1, resume=False))
    engine: Any = RunningJobs()
    table.assign(make_set(1, "a"))
    entry = table.wait_for_intake()
    assert entry is not None
    assert not table.waits_for_boundary(), "its rows are being read"
    table.book_intake(entry, prepare(make_job("a"), make_samples(1), ("q",), tmp_path), None)
    assert table.waits_for_boundary(), "it is ready to join"
    assert table.align(engine)
    assert not table.waits_for_boundary(), "it trains, or waits for a slot"
    table.assign(make_set(2, "a", priority=7))
    assert not table.waits_for_boundary(), "a priority is taken over at whatever boundary comes"
    table.assign(make_set(3, "a", suspend=True))
    assert table.waits_for_boundary(), "it is to leave"
    assert table.align(engine)
    assert not table.waits_for_boundary(), "the engine knows"
