"""A simulated hour: jobs arrive, leave, fail and end at random; the pipeline is replanned at every change."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest

from multigraft.planner.cost import CostModel
from multigraft.planner.fair_share import JobShare, settle_horizon, share_horizon
from multigraft.planner.plan import GlobalBatch, JobWork, Microbatch, Plan, PlanLimits, SampleRef
from multigraft.planner.rolling import extend_plan, subtract_committed
from multigraft.planner.simulate import simulate
from multigraft.planner.verify import verify_plan

HORIZON = 2  # global batches of each job, on average
SLOTS = 6  # jobs that train at once
COST = CostModel(forward_token_ms=0.08, backward_token_ms=0.08)  # a slow machine: an hour of few microbatches


@dataclass
class TraceJob:
    name: str
    arrives_ms: float
    leaves_ms: float
    num_steps: int
    priority: int
    rng: np.random.Generator
    lag_tokens: float = 0.0
    batches: list[GlobalBatch] = field(default_factory=list)

    def batch(self, step: int) -> GlobalBatch:
        while len(self.batches) <= step:
            first = 4 * len(self.batches)
            lengths = np.clip(self.rng.lognormal(6.5, 0.8, 4), 16, 4096).astype(int)
            samples = tuple(SampleRef(first + i, int(n)) for i, n in enumerate(lengths))
            self.batches.append(GlobalBatch(len(self.batches), samples))
        return self.batches[step]


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(PlanLimits(4096, 64, 1), id="one stage"),
        pytest.param(PlanLimits(4096, 64, 4), id="four stages", marks=pytest.mark.slow),
        pytest.param(PlanLimits(4096, 64, 2, 2), id="two stages, two replicas", marks=pytest.mark.slow),
    ],
)
def test_200_jobs_in_an_hour_keep_their_distances_over_every_seam_and_none_starves(limits: PlanLimits) -> None:
    rng = np.random.default_rng(7)
    jobs = {}
    for index in range(200):
        arrives = float(rng.uniform(0, 3.6e6))
        leaves = arrives + float(rng.exponential(9e5))
        steps, priority = int(rng.integers(3, 30)), int(rng.integers(0, 3))
        jobs[f"j{index}"] = TraceJob(f"j{index}", arrives, leaves, steps, priority, rng.spawn(1)[0])
    trace = _Trace(limits, jobs)
    trace.run()

    executed = Plan(limits, tuple(trace.executed))
    work = [JobWork(name, tuple(trace.done_batches(name))) for name in sorted(trace.started)]
    assert verify_plan(executed, work) == []
    assert simulate(executed, COST).stale == ()
    assert trace.idle_slots_for_planning == 0
    assert trace.num_plans > 200
    assert trace.longest_wait < 60 * limits.num_replicas, "a job waited more than two horizons for its next sample"
    assert trace.completed | trace.left == trace.started
    assert all(trace.steps_done[name] == jobs[name].num_steps for name in trace.completed)
    assert len(trace.completed) > 20


class _Trace:
    """Runs slot by slot; a change is planned for behind the slots that the pipeline already holds."""

    def __init__(self, limits: PlanLimits, jobs: dict[str, TraceJob]) -> None:
        self.limits = limits
        self.jobs = jobs
        self.arriving = sorted(jobs.values(), key=lambda job: job.arrives_ms)
        self.queue: list[TraceJob] = []
        self.active: dict[str, TraceJob] = {}
        self.started: set[str] = set()
        self.completed: set[str] = set()
        self.left: set[str] = set()
        self.executed: list[Microbatch] = []
        self.tail: list[Microbatch] = []  # planned, not executed
        self.work: list[JobWork] = []  # that executed-since-the-plan and tail cover
        self.planned_from = 0
        self.steps_done: dict[str, int] = defaultdict(int)
        self.last_place: dict[str, int] = {}
        self.now_ms = 0.0
        self.num_plans = 0
        self.idle_slots_for_planning = 0
        self.longest_wait = 0  # microbatches
        self.shares: list[JobShare] = []  # of the plan that runs
        self.steps_at_plan: dict[str, int] = {}

    def run(self) -> None:
        while self.arriving or self.queue or self.active:
            if self._change_jobs() or not self.tail:
                self._replan()
            if self.tail:
                self._execute()
            elif self.active:
                self.idle_slots_for_planning += 1
            else:
                self.now_ms = max(self.now_ms, self.arriving[0].arrives_ms) if self.arriving else self.now_ms

    def done_batches(self, name: str) -> list[GlobalBatch]:
        run: dict[int, list[SampleRef]] = defaultdict(list)
        for microbatch in self.executed:
            for segment in microbatch.segments:
                if segment.job == name:
                    run[segment.step].extend(segment.samples)
        batches = [GlobalBatch(step, tuple(sorted(run[step]))) for step in sorted(run)]
        for batch in batches[:-1]:  # the last may be cut short where the job left
            assert batch == self.jobs[name].batch(batch.step)
        return batches

    def _change_jobs(self) -> bool:
        changed = False
        while self.arriving and self.arriving[0].arrives_ms <= self.now_ms:
            self.queue.append(self.arriving.pop(0))
        for name, job in list(self.active.items()):
            if self.steps_done[name] >= job.num_steps:
                self.completed.add(name)
            elif job.leaves_ms <= self.now_ms:
                self.left.add(name)
            else:
                continue
            del self.active[name]
            changed = True
        while self.queue and len(self.active) < SLOTS:
            job = self.queue.pop(0)
            if job.leaves_ms > self.now_ms:
                self.active[job.name] = job
                self.started.add(job.name)
                self.last_place[job.name] = len(self.executed)
                changed = True
        return changed

    def _replan(self) -> None:
        since = self.executed[self.planned_from :]
        left = {job.job: job for job in subtract_committed(self.work, since)}
        granted = self._share()
        self.work = []
        for name, job in self.active.items():
            first = self.steps_done[name]
            partly = left[name].global_batches[:1] if name in left else ()
            partly = partly if partly and partly[0].step == first else ()
            fresh = range(first + len(partly), first + granted[name])
            batches = (*partly, *(job.batch(step) for step in fresh))
            self.work.append(JobWork(name, batches, job.priority))
        committed = self.limits.num_stages * self.limits.num_replicas
        self.tail = list(extend_plan(self.executed[-committed:], self.work, self.limits, cost=COST).microbatches)
        self.planned_from = len(self.executed)
        self.num_plans += 1

    def _share(self) -> dict[str, int]:
        """Settle what the last plan gave before it was cut, and share the next one."""
        done = {share.job: self.steps_done[share.job] - self.steps_at_plan[share.job] for share in self.shares}
        for name, lag in settle_horizon(self.shares, done).items():
            self.jobs[name].lag_tokens = lag
        self.shares = [
            JobShare(name, 4 * 900, job.num_steps - self.steps_done[name], job.priority, job.lag_tokens)
            for name, job in self.active.items()
        ]
        self.steps_at_plan = {name: self.steps_done[name] for name in self.active}
        return share_horizon(self.shares, self.limits, HORIZON)

    def _execute(self) -> None:
        """Run one slot: a microbatch on each replica."""
        slot, self.tail = self.tail[: self.limits.num_replicas], self.tail[self.limits.num_replicas :]
        self.executed += slot
        self.now_ms += float(COST.estimate_ms(slot, 64).sum(axis=0).max()) / self.limits.num_stages
        later = {(segment.job, segment.step) for m in self.tail for segment in m.segments}
        for segment in (segment for microbatch in slot for segment in microbatch.segments):
            self.longest_wait = max(self.longest_wait, len(self.executed) - self.last_place[segment.job])
            self.last_place[segment.job] = len(self.executed)
            if (segment.job, segment.step) not in later:
                self.steps_done[segment.job] = segment.step + 1
