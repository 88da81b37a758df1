"""The four jobs of the loss-curve benchmark: adapters of mixed rank, dropout, targets and schedule, and their rows.

`loss_curve_rows.npz` holds the rows of examples/01-quickstart as token ids of SmolLM2's tokenizer, so that neither
texts nor a tokenizer are needed where the benchmark runs. `python loss_curve_jobs.py` writes it anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from multigraft.api.adapter_job import LrSchedulerType
from multigraft.planner.plan import JobWork
from multigraft.planner.sample_order import SampleOrder
from multigraft_trainer.adapters.optimizer import OptimizerOptions
from multigraft_trainer.intake.samples import TokenisedSample

ROWS = Path(__file__).with_name("loss_curve_rows.npz")
QUICKSTART = Path(__file__).parents[3] / "examples" / "01-quickstart"
GLOBAL_BATCH = 8


@dataclass(frozen=True)
class CurveJob:
    """One adapter: the quickstart's shapes and rates, 200 steps in place of 16 to 20."""

    name: str
    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]
    learning_rate: float
    schedule: LrSchedulerType
    warmup_steps: int
    seed: int

    def build_order(self, samples: list[TokenisedSample]) -> SampleOrder:
        """Build the order of its samples, the same in every run."""
        return SampleOrder(seed=self.seed, num_samples=len(samples), global_batch_size=GLOBAL_BATCH)

    def build_work(self, samples: list[TokenisedSample], num_steps: int) -> JobWork:
        """List its global batches for the planner."""
        order, lengths = self.build_order(samples), [sample.num_tokens for sample in samples]
        return JobWork(self.name, tuple(order.build_global_batch(step, lengths) for step in range(num_steps)))

    def build_optimizer_options(self, num_steps: int) -> OptimizerOptions:
        """Read the optimizer's numbers."""
        return OptimizerOptions(
            self.learning_rate, total_steps=num_steps, schedule=self.schedule, warmup_steps=self.warmup_steps
        )


_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")

JOBS = (
    CurveJob("api-helper", 16, 32.0, 0.1, _ATTENTION, 1e-3, LrSchedulerType.LINEAR, 0, seed=1),
    CurveJob("stdlib-summaries", 8, 16.0, 0.05, _ATTENTION + _FEED_FORWARD, 1e-3, LrSchedulerType.COSINE, 10, seed=2),
    CurveJob("error-codes", 32, 32.0, 0.05, _FEED_FORWARD, 5e-4, LrSchedulerType.CONSTANT_WITH_WARMUP, 10, seed=3),
    CurveJob("unicode-names", 4, 8.0, 0.0, ("q_proj", "v_proj"), 2e-3, LrSchedulerType.CONSTANT, 0, seed=4),
)


def load_rows(path: Path = ROWS) -> dict[str, list[TokenisedSample]]:
    """Load the samples of each job."""
    rows: dict[str, list[TokenisedSample]] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for job in JOBS:
            ends = np.cumsum(arrays[f"{job.name}.lengths"])[:-1]
            ids = np.split(arrays[f"{job.name}.ids"].astype(np.int32), ends)
            masks = np.split(np.unpackbits(arrays[f"{job.name}.supervised"])[: sum(map(len, ids))].astype(bool), ends)
            rows[job.name] = [
                TokenisedSample(row + 1, own, mask) for row, (own, mask) in enumerate(zip(ids, masks, strict=True))
            ]
    return rows


def pack_rows(path: Path = ROWS) -> None:
    """Tokenise the quickstart's prepared rows and write them down; ids are below 65,536, masks are bits."""
    from multigraft.manifests.load import load_manifests
    from multigraft_trainer.intake.load import load_dataset
    from multigraft_trainer.intake.options import IntakeOptions
    from multigraft_trainer.intake.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(QUICKSTART / "prepared" / "smollm2-135m-instruct")
    arrays = {}
    for job in load_manifests([QUICKSTART]).jobs:
        name = job.metadata.name
        samples = load_dataset(
            QUICKSTART / str(job.spec.dataset.storage_uri),
            options=IntakeOptions.from_spec(job.spec.dataset, job.spec.training),
            tokenizer=tokenizer,
            embedding_rows=2**16,
        ).samples
        arrays[f"{name}.lengths"] = np.array([sample.num_tokens for sample in samples], dtype=np.uint16)
        arrays[f"{name}.ids"] = np.concatenate([sample.input_ids for sample in samples]).astype(np.uint16)
        arrays[f"{name}.supervised"] = np.packbits(np.concatenate([sample.supervised for sample in samples]))
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    pack_rows()
