"""Four jobs of the quickstart on one base together, against the same four alone, and against plain PEFT.

    together   multigraft run, all four jobs in one process
    alone      multigraft run, one job per process, one after another
    plain      plain_peft.py, one job per process, one after another

Wall time is that of whole processes: import, loading, intake, training, export (together and alone also checkpoints,
report and the success gate). Peak memory is that of the largest process; the sum over the four is what running them at
the same time would need. Rounds interleave the variants, so that a machine that slows down slows all of them. Held-out
rows are left out on all sides. The runs also check one another: same batches, so the same first loss for each job.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
QUICKSTART = ROOT / "examples" / "01-quickstart"
BASE = QUICKSTART / "prepared" / "smollm2-135m-instruct"
RESULTS = ROOT / "docs" / "benchmarks"
FIRST_LOSS_TOLERANCE = 1e-3  # nats; lora_B is zero, so the first loss is the base's, dropout or not


NOTES = """\
{tokens:,} tokens in all, the same batches in every variant (token counts and first losses are compared). Wall time is
that of whole processes, from import to the written adapter; multigraft's also holds its checkpoints, its report and the
check that each exported adapter loads and has an effect. Plain PEFT pads a batch to its longest sample and computes
logits at every position. CPU seconds are of all threads; they say the same when other programs share the machine, which
wall time does not. Load average of the machine, our own threads included: {load}.
"""


@dataclass(frozen=True)
class Measured:
    """One variant in one round."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes_largest: int
    peak_bytes_sum: int
    train_seconds: float
    first_losses: dict[str, float]
    num_tokens: int


@dataclass(frozen=True)
class Process:
    """One finished process."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    stdout: str


def run_process(command: list[str | Path]) -> Process:
    """Run to the end; the peak is the kernel's own count for that process."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    stdout = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall_seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}: {stdout[-2000:]}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Process(wall_seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit, stdout)


def measure_multigraft(folders: list[Path], scratch: Path) -> Measured:
    """Run `multigraft run` on each folder, one after another."""
    processes, results = [], []
    for folder in folders:
        out = Path(tempfile.mkdtemp(dir=scratch)) / "out"
        command = [Path(sys.executable).parent / "multigraft", "run", folder, "--out", out, "--quiet"]
        processes.append(run_process(command))
        results.append(json.loads((out / "result.json").read_text()))
    jobs = [job for result in results for job in result["jobs"]]
    return Measured(
        **sum_processes(processes),
        train_seconds=sum(result["pool"]["trainSeconds"] for result in results),
        first_losses={job["job"]: job["history"][0]["loss"] for job in jobs},
        num_tokens=sum(job["numTokens"] for job in jobs),
    )


def measure_plain(jobs: list[Path], scratch: Path) -> Measured:
    """Run the plain PEFT loop on each job, one after another."""
    processes = []
    for job in jobs:
        rows = json.loads(job.read_text())["spec"]["dataset"]["storageUri"]
        script = Path(__file__).with_name("plain_peft.py")
        processes.append(run_process([sys.executable, script, job, BASE, rows, Path(tempfile.mkdtemp(dir=scratch))]))
    printed = [json.loads(process.stdout.strip().splitlines()[-1]) for process in processes]
    return Measured(
        **sum_processes(processes),
        train_seconds=sum(job["trainSeconds"] for job in printed),
        first_losses={job["job"]: job["losses"][0] for job in printed},
        num_tokens=sum(job["numTokens"] for job in printed),
    )


def sum_processes(processes: list[Process]) -> dict[str, float | int]:
    """Give what processes that ran one after another cost together."""
    return {
        "wall_seconds": sum(process.wall_seconds for process in processes),
        "cpu_seconds": sum(process.cpu_seconds for process in processes),
        "peak_bytes_largest": max(process.peak_bytes for process in processes),
        "peak_bytes_sum": sum(process.peak_bytes for process in processes),
    }


def write_folders(scratch: Path) -> tuple[Path, list[Path], list[Path]]:
    """Write the manifests with absolute paths and without held-out rows: one folder for all jobs, one for each."""
    documents = [yaml.safe_load(path.read_text()) for path in sorted(QUICKSTART.glob("*.yaml"))]
    pool = next(document for document in documents if document["kind"] == "BaseModelPool")
    jobs = [document for document in documents if document["kind"] == "AdapterJob"]
    pool["spec"]["baseModel"]["storageUri"] = str(BASE)
    pool["spec"]["storage"] = {"allowedRoots": [str(QUICKSTART / "prepared")]}
    together = scratch / "together"
    alone = [scratch / job["metadata"]["name"] for job in jobs]
    for folder in (together, *alone):
        folder.mkdir()
        (folder / "pool.json").write_text(json.dumps(pool))
    files = []
    for job, folder in zip(jobs, alone, strict=True):
        dataset = job["spec"]["dataset"]
        dataset["storageUri"] = str(QUICKSTART / dataset["storageUri"])
        del dataset["evalStorageUri"]
        for place in (together, folder):
            (place / f"{job['metadata']['name']}.json").write_text(json.dumps(job))
        files.append(folder / f"{job['metadata']['name']}.json")
    return together, alone, files


def check_same_work(round_results: dict[str, Measured]) -> None:
    """Refuse to compare runs that did not do the same work."""
    want = round_results["plain"]
    for name, got in round_results.items():
        if got.num_tokens != want.num_tokens:
            raise RuntimeError(f"{name} trained {got.num_tokens} tokens, plain PEFT {want.num_tokens}")
        for job, loss in want.first_losses.items():
            if abs(got.first_losses[job] - loss) > FIRST_LOSS_TOLERANCE:
                raise RuntimeError(f"{name}: first loss of {job} is {got.first_losses[job]}, plain PEFT says {loss}")


def measure(rounds: int) -> tuple[list[dict[str, Measured]], list[float]]:
    """Run all variants in each round, in an order that rotates; gives also the load average after each round."""
    results, loads = [], []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        together, alone, files = write_folders(scratch)
        variants = {
            "together": lambda: measure_multigraft([together], scratch),
            "alone": lambda: measure_multigraft(alone, scratch),
            "plain": lambda: measure_plain(files, scratch),
        }
        names = list(variants)
        for number in range(rounds):
            order = names[number % len(names) :] + names[: number % len(names)]
            measured = {variant: variants[variant]() for variant in order}
            check_same_work(measured)
            results.append(measured)
            loads.append(os.getloadavg()[1])
            print(f"round {number + 1}: " + ", ".join(f"{n} {m.wall_seconds:.1f} s" for n, m in measured.items()))
    return results, loads


def describe_machine() -> dict[str, str]:
    """Give what the numbers depend on."""
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    names = ("torch", "transformers", "peft", "numpy")
    return {"cpu": cpu, "cores": str(os.cpu_count()), "python": platform.python_version()} | {
        name: version(name) for name in names
    }


def render(results: list[dict[str, Measured]], machine: dict[str, str], date: str, loads: list[float]) -> str:
    """Write the page."""
    lines = [
        "# Quickstart on a CPU: together, alone, and plain PEFT",
        "",
        f"{date}. " + ", ".join(f"{key} {value}" for key, value in machine.items()) + ".",
        f"Command: `make bench-cpu`. Medians of {len(results)} interleaved rounds, [least, most] beside them.",
        "",
        "| variant | wall, s | CPU, s | training alone, s | tokens/s in training | peak, GiB | all at once, GiB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    titles = {
        "together": "four jobs together (multigraft)",
        "alone": "the same code, one job after another",
        "plain": "PEFT + torch, one job after another",
    }
    for name, title in titles.items():
        runs = [result[name] for result in results]
        wall = [run.wall_seconds for run in runs]
        cpu = [run.cpu_seconds for run in runs]
        train = [run.train_seconds for run in runs]
        largest = statistics.median(run.peak_bytes_largest for run in runs) / 2**30
        total = statistics.median(run.peak_bytes_sum for run in runs) / 2**30
        speed = statistics.median(run.num_tokens / run.train_seconds for run in runs)
        lines.append(
            f"| {title} | {show(wall)} | {show(cpu)} | {show(train)} | {speed:.0f} | {largest:.2f} | "
            f"{largest if name == 'together' else total:.2f} |"
        )
    notes = NOTES.format(
        tokens=results[0]["together"].num_tokens, load=", ".join(f"{average:.1f}" for average in loads)
    )
    return "\n".join(lines) + "\n\n" + notes


def show(values: list[float]) -> str:
    """Give `median [least, most]`."""
    return f"{statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3, help="at least 3 for numbers that are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the page and its JSON")
    options = parser.parse_args()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    machine = describe_machine()
    results, loads = measure(options.rounds)
    page = render(results, machine, date, loads)
    options.out.mkdir(parents=True, exist_ok=True)
    name = f"cpu_quickstart_{date}"
    (options.out / f"{name}.md").write_text(page)
    rounds = [{variant: asdict(measured) for variant, measured in result.items()} for result in results]
    (options.out / f"{name}.json").write_text(
        json.dumps({"machine": machine, "loadAverages": loads, "rounds": rounds}, indent=1) + "\n"
    )
    print(page)


if __name__ == "__main__":
    main()
