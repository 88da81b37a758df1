"""Builders of planner inputs: work from lists of lengths, plans from short texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multigraft.planner.plan import GlobalBatch, JobWork, Microbatch, Plan, PlanLimits, SampleRef, Segment


def make_work(job: str, *steps: Sequence[int], first_step: int = 0, first_draw: int = 0, priority: int = 0) -> JobWork:
    """Make a job's work from the lengths of each of its steps; draws count up over the steps."""
    batches = []
    draw = first_draw
    for index, lengths in enumerate(steps):
        samples = tuple(SampleRef(draw + i, length) for i, length in enumerate(lengths))
        batches.append(GlobalBatch(first_step + index, samples))
        draw += len(lengths)
    return JobWork(job, tuple(batches), priority)


def make_random_work(
    seed: int,
    *,
    num_jobs: int = 4,
    num_steps: int = 4,
    batch_size: int = 8,
    mu: float = 6.0,
    sigma: float = 0.9,
    longest: int = 4096,
) -> list[JobWork]:
    """Make jobs with log-normal lengths (mu, sigma of the logarithm), clipped to 16..longest tokens."""
    rng = np.random.default_rng(seed)
    return [
        make_work(
            f"team/job-{index}",
            *(
                np.clip(rng.lognormal(mu, sigma, batch_size), 16, longest).astype(int).tolist()
                for _ in range(num_steps)
            ),
        )
        for index in range(num_jobs)
    ]


def make_plan(limits: PlanLimits, *microbatches: str) -> Plan:
    """Make a plan from texts such as "a0:0/10,1/20 b3:7/5" (job, step, then draw/tokens); "" is a no-op."""
    return Plan(
        limits, tuple(Microbatch(tuple(_parse_segment(word) for word in text.split())) for text in microbatches)
    )


def _parse_segment(text: str) -> Segment:
    name, _, samples = text.partition(":")
    refs = tuple(SampleRef(*(int(part) for part in sample.split("/"))) for sample in samples.split(",") if sample)
    return Segment(name[0], int(name[1:]), refs)
