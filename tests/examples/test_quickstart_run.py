"""The quickstart from its first step to its adapters: stopped once, resumed, and looked at from all sides."""

from __future__ import annotations

import fcntl
import json
import math
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from builders.quickstart import QUICKSTART, prepare_quickstart
from multigraft_trainer.report.results import JobResult, JobState, RunResult, load_result

pytestmark = [pytest.mark.slow, pytest.mark.real_model, pytest.mark.timeout(1800)]

MULTIGRAFT = Path(sys.executable).parent / "multigraft"
MAX_RSS_BYTES = 4 * 2**30
LEAST_GAIN = 0.4  # nats of held-out loss
FIRST_PART_STEPS = 4


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MULTIGRAFT, *arguments], capture_output=True, text=True, check=False)


@dataclass(frozen=True)
class Quickstart:
    """Two runs of the quickstart: a part, then the rest by --resume."""

    out: Path
    part: RunResult
    whole: RunResult
    stdout: str

    @property
    def jobs(self) -> dict[str, JobResult]:
        return {job.job: job for job in self.whole.jobs}


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory, worker_id) -> Quickstart:
    """Give the run, which takes minutes: the first worker that asks makes it, the others wait and look at the same."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "quickstart"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "stdout.txt").exists():
            run_in_two_parts(folder)
    out = folder / "out"
    return Quickstart(
        out,
        load_result(folder / "part.json"),
        load_result(out / "result.json"),
        (folder / "stdout.txt").read_text(),
    )


def run_in_two_parts(folder: Path) -> None:
    prepare_quickstart()
    out = folder / "out"
    part = run("run", QUICKSTART, "--out", out, "--steps", str(FIRST_PART_STEPS))
    assert part.returncode == 0, part.stdout + part.stderr
    shutil.copy(out / "result.json", folder / "part.json")
    whole = run("run", QUICKSTART, "--out", out, "--resume")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    (folder / "stdout.txt").write_text(whole.stdout)


def test_it_stops_where_it_is_told_and_goes_on_from_there(quickstart):
    assert [(job.state, job.steps) for job in quickstart.part.jobs] == [(JobState.STOPPED, FIRST_PART_STEPS)] * 4
    for before, after in zip(quickstart.part.jobs, quickstart.whole.jobs, strict=True):
        assert [record.loss for record in after.history[:FIRST_PART_STEPS]] == [
            record.loss for record in before.history
        ]
        assert [record.step for record in after.history] == list(range(1, after.total_steps + 1))


def test_it_teaches_each_adapter_its_own_task(quickstart):
    for job in quickstart.jobs.values():
        assert job.state is JobState.SUCCEEDED, job.message
        assert job.heldout_change < -LEAST_GAIN, job.job
        assert job.rows.num_trained == job.rows.num_read == 300


def test_it_stays_below_four_gibibytes_and_fills_its_microbatches(quickstart):
    assert quickstart.whole.peak_rss_bytes < MAX_RSS_BYTES
    assert quickstart.whole.pool.fill > 0.85


def test_it_prints_plain_lines_and_the_end_table(quickstart):
    assert "\x1b" not in quickstart.stdout
    for job in quickstart.jobs.values():
        row = next(line for line in quickstart.stdout.splitlines() if line.startswith(f"{job.job} "))
        assert f"{job.heldout_loss_before:.3f} -> {job.heldout_loss_after:.3f}" in row
        assert f"adapter: {job.adapter_path}" in quickstart.stdout.replace("\n", "")


def test_it_leaves_reports_metrics_and_json(quickstart):
    for name in ("report.html", "loss_curves.png", "plan.png", "metrics.prom", "result.json"):
        assert (quickstart.out / name).stat().st_size > 500, name
    metrics = (quickstart.out / "metrics.prom").read_text()
    assert "multigraft_" in metrics
    assert json.loads((quickstart.out / "result.json").read_text())["schemaVersion"] == 1


def test_its_adapters_load_in_peft_and_change_the_logits(quickstart):
    disable_progress_bar()
    base = QUICKSTART / "prepared" / "smollm2-135m-instruct"
    ids = AutoTokenizer.from_pretrained(base)("SIGSEGV means", return_tensors="pt")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.inference_mode():
        plain = model(ids).logits
    seen = []
    for job in quickstart.jobs.values():
        adapted = PeftModel.from_pretrained(model, job.adapter_path)
        with torch.inference_mode():
            seen.append(adapted(ids).logits)
        model = adapted.unload()
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, plain), "the base is as it was"
    gaps = [float((logits - plain).abs().max()) for logits in seen]
    assert all(math.isfinite(gap) and gap > 0.05 for gap in gaps), gaps
    assert all(not torch.allclose(a, b) for i, a in enumerate(seen) for b in seen[:i])
