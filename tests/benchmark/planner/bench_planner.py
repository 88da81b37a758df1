"""Packing quality, planning time, idle time and replan latency of the planner; `make bench-planner`.

Lengths are real (tests/benchmark/planner/lengths, made by make_lengths.py) and log-normal. Simulated times come from
the cost model's defaults (an 8B model on one H200, split evenly over the stages); nothing here touches a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from answers import answer
from measure import (
    Row,
    measure_bubbles,
    measure_horizons,
    measure_packing,
    measure_parts,
    measure_planning,
    measure_replanning,
    measure_solver,
    measure_spread,
)
from workloads import SETTINGS

from multigraft.api.base_model_pool import Scheduling

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs" / "benchmarks"
TILE = 128  # LoRAFusion's, and the coarsest of ours
TILES = (1, 64, 128)
PAPER_BUBBLES = {1: "44.17 %", 2: "15.00 %", 3: "12.23 %", 4: "11.09 %"}
WIKISUM_8B, WIKISUM_70B = SETTINGS[2], SETTINGS[6]
SOLVER_SECONDS = float(Scheduling().solver_timeout_seconds)  # what a pool has by default
HORIZONS = (1, 2, 4, 8, 16, 32)
NOTES = """\
Lengths are real texts of similar average length to the datasets that the names recall, with heavier tails
(tests/benchmark/planner/make_lengths.py); never those datasets. Times in ms are simulated with the cost model's
defaults; idle shares are of all stages over the whole run. *greedy* is first-fit decreasing, round by round, in groups;
*full* is best-fill up to the capacity; *runs* is what `plan_horizon` gives without a solver. *bound*: no plan has fewer
microbatches. Wall times depend on what else ran; CPU times hardly.
"""
BUBBLE_NOTES = """

The baselines are this simulator's, four samples a microbatch. *paper*: LoRAFusion on 4 H100, 70B, its own data; it
gives 48.79 % for Megatron-LM and 34.11 % for mLoRA.
"""


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the page and its JSON")
    parser.add_argument("--steps", type=int, default=20, help="global batches of each adapter")
    parser.add_argument("--skip-solver", action="store_true", help="leave out what asks a solver")
    options = parser.parse_args()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    seconds = 0 if options.skip_solver else SOLVER_SECONDS
    sections = {
        "packing": measure_packing(TILES, (4, 8), options.steps),
        "spread": measure_spread((0.25, 0.5, 0.75, 1.0, 1.5), TILE, options.steps),
        "planning": measure_planning((640, 25_600), WIKISUM_8B, (1, TILE), seconds),
        "bubbles": measure_bubbles((1, 2, 3, 4, 8), WIKISUM_70B, TILE, options.steps),
        "horizons": measure_horizons(HORIZONS, 96, (1, TILE)),
        "replanning": measure_replanning((1, 2, 4, 8), TILE, 15),
    }
    if not options.skip_solver:
        sections["solver"] = measure_solver(WIKISUM_8B, TILE, options.steps, (0.1, 1.0, 10.0))
        sections["parts"] = measure_parts(SETTINGS, TILE, options.steps, 20.0)
    machine = describe_machine()
    page = render(sections, machine, date)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"planner_{date}.md").write_text(page, encoding="utf-8")
    data = json.dumps({"machine": machine, **sections}, indent=1)
    (options.out / f"planner_{date}.json").write_text(data + "\n", encoding="utf-8")
    print(page)


def describe_machine() -> dict[str, str]:
    """Give what the numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    load = f"{os.getloadavg()[1]:.1f}"  # five minutes' mean; above the cores, others ran beside us
    facts = {"cpu": cpu, "cores": str(len(os.sched_getaffinity(0))), "load": load, "python": platform.python_version()}
    return facts | {name: version(name) for name in ("numpy", "pulp", "highspy")}


def render(sections: dict[str, list[Row]], machine: dict[str, str], date: str) -> str:
    """Write the page."""
    facts = ", ".join(f"{key} {value}" for key, value in machine.items())
    parts = [
        "# Planner: packing, time, idle stages\n",
        f"{date}. {facts}. Command: `make bench-planner`.",
        NOTES,
        f"## In short\n\n{answer(sections)}\n",
    ]
    titles: dict[str, tuple[str, Callable[[Sequence[Row]], str]]] = {
        "packing": ("Fill of capacity and microbatches at LoRAFusion's settings, 20 steps of each adapter", _packing),
        "spread": (f"Log-normal lengths of mean 1,000, one stage, tile {TILE}", _spread),
        "bubbles": (f"Idle share, {WIKISUM_70B.name}, batch 16, capacity 7,168, tile {TILE}", _bubbles),
        "planning": (f"Time to plan, {WIKISUM_8B.name}, 4 adapters, {SOLVER_SECONDS:.0f} s for the solver", _planning),
        "solver": ("Packing problems that the solver proves, by seconds that each gets", _solver),
        "parts": (f"Simulated makespan: what the solver and merging add (20 s for the solver), tile {TILE}", _parts),
        "horizons": ("Fill by global batches of each adapter in a plan, batches of 8, capacity 8,192", _horizons),
        "replanning": (f"A ninth job arrives: time to the new plan (CPU, 15 times), tile {TILE}", _replanning),
    }
    for name, (title, write) in titles.items():
        if name in sections:
            parts.append(f"## {title}\n\n{write(sections[name])}\n")
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def _packing(rows: Sequence[Row]) -> str:
    head = (
        "setting",
        "adapters",
        "tile",
        "bound",
        "greedy",
        "full",
        "runs",
        "fill greedy",
        "fill full",
        "ms greedy",
        "ms runs",
    )
    return _table(
        head,
        [
            (
                row["setting"],
                row["adapters"],
                row["tile"],
                row["bound"],
                row["greedy"],
                row["full"],
                row["chosen"],
                f"{row['greedy_fill']:.1%}",
                f"{row['full_fill']:.1%}",
                f"{row['greedy_ms']:,.0f}",
                f"{row['chosen_ms']:,.0f}",
            )
            for row in rows
        ],
    )


def _spread(rows: Sequence[Row]) -> str:
    head = ("sigma", "adapters", "capacity", "bound", "greedy", "full", "fill greedy", "fill full")
    return _table(
        head,
        [
            (
                row["sigma"],
                row["adapters"],
                row["capacity"],
                row["bound"],
                row["greedy"],
                row["full"],
                f"{row['greedy_fill']:.1%}",
                f"{row['full_fill']:.1%}",
            )
            for row in rows
        ],
    )


def _bubbles(rows: Sequence[Row]) -> str:
    head = ("adapters", "ours", "no-ops", "paper", "Megatron-LM", "mLoRA", "ours, ms", "Megatron-LM, ms", "mLoRA, ms")
    table = _table(
        head,
        [
            (
                row["adapters"],
                f"{row['ours_bubble']:.1%}",
                row["no_ops"],
                PAPER_BUBBLES.get(row["adapters"], "-"),
                f"{row['megatron_bubble']:.1%}",
                f"{row['mlora_bubble']:.1%}",
                f"{row['ours_ms']:,.0f}",
                f"{row['megatron_ms']:,.0f}",
                f"{row['mlora_ms']:,.0f}",
            )
            for row in rows
        ],
    )
    return table + BUBBLE_NOTES


def _planning(rows: Sequence[Row]) -> str:
    head = (
        "samples",
        "tile",
        "no solver, s wall",
        "s CPU",
        "with solver, s wall",
        "microbatches",
        "bound",
        "problems",
        "fewest proved by bound",
        "fewest proved in all",
        "smallest too",
        "not proved",
    )
    return _table(
        head,
        [
            (
                f"{row['samples']:,}",
                row["tile"],
                f"{row['greedy_wall']:.2f}",
                f"{row['greedy_cpu']:.2f}",
                f"{row['wall']:.2f}",
                f"{row['microbatches_greedy']:,} / {row['microbatches']:,}",
                f"{row['bound']:,}",
                row["problems"],
                f"{row['fewest_by_bound']} ({row['fewest_by_bound'] / row['problems']:.1%})",
                f"{row['fewest']} ({row['fewest'] / row['problems']:.1%})",
                row["proved"],
                ", ".join(f"{count} {reason}" for reason, count in row["failures"].items()) or "-",
            )
            for row in rows
        ],
    )


def _solver(rows: Sequence[Row]) -> str:
    head = (
        "seconds each",
        "problems",
        "fewest proved by bound",
        "fewest proved in all",
        "smallest too",
        "bins: bound",
        "first-fit",
        "better greedy",
        "solver",
        "wall, s",
    )
    return _table(
        head,
        [
            (
                row["seconds_each"],
                row["problems"],
                f"{row['fewest_by_bound']} ({row['fewest_by_bound'] / row['problems']:.0%})",
                f"{row['fewest']} ({row['fewest'] / row['problems']:.0%})",
                row["both"],
                row["bins_bound"],
                row["bins_first_fit"],
                row["bins_greedy"],
                row["bins_solver"],
                f"{row['wall']:.1f}",
            )
            for row in rows
        ],
    )


def _parts(rows: Sequence[Row]) -> str:
    names = ("greedy", "greedy+solver", "greedy+merge", "greedy+solver+merge", "best-fill")
    return _table(
        ("setting", *names),
        [
            (row["setting"], *(f"{row[name]:,.0f} ({row[name] / row['greedy'] - 1:+.1%})" for name in names))
            for row in rows
        ],
    )


def _horizons(rows: Sequence[Row]) -> str:
    return _table(
        ("lengths", "tile", *map(str, HORIZONS)),
        [(row["setting"], row["tile"], *(f"{row[str(horizon)]:.1%}" for horizon in HORIZONS)) for row in rows],
    )


def _replanning(rows: Sequence[Row]) -> str:
    head = ("stages", "median, ms", "p20", "p80", "a microbatch runs, ms")
    return _table(
        head,
        [
            (row["stages"], *(f"{row[name]:.1f}" for name in ("median_ms", "p20_ms", "p80_ms", "microbatch_ms")))
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
