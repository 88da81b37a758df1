"""A directory for `multigraft run`: tiny base, rows and manifests; and the run itself, in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.tiny_base import make_tiny_base
from multigraft.manifests.load import load_manifests
from multigraft_trainer.local_run.local_run import LocalRun, RunOptions
from multigraft_trainer.local_run.pool_selection import select_pool
from multigraft_trainer.local_run.run_folder import open_run_folder
from multigraft_trainer.report.progress import Progress, SilentProgress
from multigraft_trainer.report.results import JobResult, RunResult

NAMESPACE = "default"


def make_rows(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Make short conversations."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"say {number + seed}"},
                {"role": "assistant", "content": f"it is {(number * 7 + seed) % 10}"},
            ]
        }
        for number in range(count)
    ]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


class RunDirectory:
    """Builds the directory step by step; `run` trains what is in it."""

    def __init__(self, folder: Path, *, base: Path | None = None, **pool: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.base = base or make_tiny_base(folder / "base", "llama")
        spec: dict[str, Any] = {
            "baseModel": {"storageUri": str(self.base), "dtype": "FP32"},
            "gpu": {"accelerators": [{"name": "CPU"}]},
            "slots": {"max": 8, "maxRank": 32},
            "batching": {"maxTokensPerMicrobatch": 512},
            "scheduling": {"horizonGlobalBatches": 2, "solverTimeoutSeconds": 0},
            "checkpoint": {"intervalSteps": 2},
            **pool,
        }
        self._write("pool", {"kind": "BaseModelPool", "metadata": {"name": "tiny"}, "spec": spec})

    def add_job(
        self,
        name: str,
        *,
        rows: Sequence[Mapping[str, Any]] | Path | None = None,
        lora: Mapping[str, Any] | None = None,
        dataset: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
        **training: Any,
    ) -> str:
        """Add a job and its rows; gives its key."""
        data = self.folder / f"{name}.jsonl"
        if isinstance(rows, Path):
            data.write_bytes(rows.read_bytes())
        else:
            write_rows(data, rows if rows is not None else make_rows(12))
        if "numTrainEpochs" not in training:
            training.setdefault("maxSteps", 6)
        body = {
            "poolRef": {"name": "tiny"},
            "dataset": {"storageUri": data.name, **(dataset or {})},
            "lora": {"r": 4, "targetModules": ["q_proj", "v_proj"], **(lora or {})},
            "training": {"learningRate": "1e-2", "globalBatchSize": 4, "maxSeqLength": 256, **training},
            **(spec or {}),
        }
        self._write(f"job-{name}", {"kind": "AdapterJob", "metadata": {"name": name}, "spec": body})
        return f"{NAMESPACE}/{name}"

    def run(self, out: Path, *, resume: bool = False, step_limit: int | None = None) -> dict[str, JobResult]:
        """Run everything; gives the results by job key."""
        return {job.job: job for job in self.run_all(out, resume=resume, step_limit=step_limit).jobs}

    def run_all(
        self,
        out: Path,
        *,
        resume: bool = False,
        step_limit: int | None = None,
        pool: str | None = None,
        progress: Progress | None = None,
    ) -> RunResult:
        """Run everything; gives the whole result."""
        manifests = load_manifests([self.folder])
        assert not manifests.problems, manifests.problems
        output = open_run_folder(self.folder, out, resume=resume)
        options = RunOptions(self.folder, resume=resume, step_limit=step_limit)
        selection = select_pool(manifests, pool)
        return LocalRun(selection, manifests.config_maps, output, options, progress or SilentProgress()).run()

    def _write(self, name: str, body: dict[str, Any]) -> None:
        document = {"apiVersion": "multigraft.dev/v1alpha1", **body}
        (self.folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
