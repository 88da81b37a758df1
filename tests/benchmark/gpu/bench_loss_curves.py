"""Loss curves: four adapters trained together, each alone, and each by PEFT; PEFT under another seed is the measure.

The curves should lie within the spread of PEFT itself: the root mean square of shared - solo and of shared - PEFT over
the steps is at most that of PEFT - PEFT under another seed. Runs are processes beside one another on one device; no
time is measured. Writes OUT.json, OUT.md and, with matplotlib, OUT.png; exit code 1 if a curve is not within.

    python tests/benchmark/gpu/bench_loss_curves.py --out runs/loss_curves [--base FOLDER]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import transformers
from loss_curve_compare import CurveSet, compare_curves
from loss_curve_jobs import JOBS, QUICKSTART
from loss_curve_report import draw_curves, write_markdown
from loss_curve_runs import RunSetting, run_ours, run_peft

OTHER_SEED = 1000  # added to a job's seed
PREPARED = QUICKSTART / "prepared" / "smollm2-135m-instruct"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def measure_curves(setting: RunSetting, workers: int) -> list[CurveSet]:
    """Run everything; the longest first, so that the workers end together."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        shared = pool.submit(run_ours, JOBS, setting)
        peft = {job.name: pool.submit(run_peft, job, setting, seed=job.seed) for job in JOBS}
        other = {job.name: pool.submit(run_peft, job, setting, seed=job.seed + OTHER_SEED) for job in JOBS}
        solo = {job.name: pool.submit(run_ours, (job,), setting) for job in JOBS}
        return [
            CurveSet(
                job=job.name,
                shared=shared.result()[job.name],
                solo=solo[job.name].result()[job.name],
                peft=peft[job.name].result(),
                peft_other_seed=other[job.name].result(),
            )
            for job in JOBS
        ]


def _start_worker() -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 8))
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def choose_base(given: Path | None) -> Path | None:
    """Take the folder that was named, else the quickstart's, else none."""
    if given is not None:
        if not (given / "config.json").is_file():
            raise SystemExit(f"--base {given}: no config.json there")
        return given
    return PREPARED if (PREPARED / "model.safetensors").is_file() else None


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help="SmolLM2 as a folder; default: the quickstart's, else random weights")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=300, help="rows of each job")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--workers", type=int, default=6, help="runs beside one another")
    parser.add_argument("--out", type=Path, default=Path("runs/loss_curves"), help="without suffix")
    arguments = parser.parse_args()
    base = choose_base(arguments.base)
    setting = RunSetting(base, arguments.device, DTYPES[arguments.dtype], arguments.steps, arguments.rows)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    curves = measure_curves(setting, arguments.workers)
    results = [compare_curves(one) for one in curves]
    facts = {
        **describe(arguments.device),
        "dtype": arguments.dtype,
        "base": base.name if base else "random weights in SmolLM2-135M's shape",
        "steps": arguments.steps,
        "command": f"python tests/benchmark/gpu/bench_loss_curves.py --steps {arguments.steps}",
        "seconds": round(time.perf_counter() - started),
    }
    data = {"facts": facts, "comparisons": [one.to_json() for one in results], "curves": [vars(one) for one in curves]}
    arguments.out.with_suffix(".json").write_text(json.dumps(data), encoding="utf-8")
    write_markdown(arguments.out.with_suffix(".md"), results, facts)
    has_picture = draw_curves(arguments.out.with_suffix(".png"), curves)
    print(arguments.out.with_suffix(".md").read_text(encoding="utf-8"))
    print("no picture: matplotlib is not installed" if not has_picture else arguments.out.with_suffix(".png"))
    sys.exit(0 if all(one.is_within for one in results) else 1)


def describe(device: str) -> dict[str, str]:
    """Name what the curves depend on."""
    import peft

    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
