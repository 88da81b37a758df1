"""What the planner's benchmark has to show, in a line each: goal, what was measured, whether it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]
MIN_FILL = 0.97
MAX_SECONDS = 10.0
MAX_BUBBLE = 0.08
PAPER_PROVED = 0.774


def answer(sections: Mapping[str, Sequence[Row]]) -> str:
    """Write one item for each question whose numbers are there."""
    writers = {
        "packing": _fill,
        "bounds": _bound,
        "planning": _time,
        "bubbles": _bubble,
        "parts": _parts,
        "replanning": _replanning,
    }
    known = {**sections, "bounds": sections["packing"]}
    return "\n".join(f"- {write(known[name])}" for name, write in writers.items() if name in known)


def _fill(rows: Sequence[Row]) -> str:
    wiki = [row["chosen_fill"] for row in rows if row["setting"].startswith("WikiSum") and row["adapters"] == 4]
    below = [row for row in rows if row["chosen"] > row["greedy"] or row["chosen_ms"] > row["greedy_ms"]]
    return (
        f"(a) Fill with 4 adapters of WikiSum-like length, worst of {len(wiki)} settings: {min(wiki):.1%} "
        f"(goal {MIN_FILL:.0%}: {_holds(min(wiki) >= MIN_FILL)}). In all {len(rows)} settings: worst "
        f"{min(row['chosen_fill'] for row in rows):.1%}; more microbatches or a later end than greedy: {len(below)}."
    )


def _bound(rows: Sequence[Row]) -> str:
    over = [row["chosen"] / row["bound"] - 1 for row in rows]
    at_bound = sum(row["chosen"] == row["bound"] for row in rows)
    return (
        f"(b) Microbatches above the lower bound: {sum(over) / len(over):.1%} on average, {max(over):.1%} at most; "
        f"{at_bound} of {len(rows)} plans are at it. Greedy: "
        f"{sum(row['greedy'] / row['bound'] - 1 for row in rows) / len(rows):.1%} on average."
    )


def _time(rows: Sequence[Row]) -> str:
    large = [row for row in rows if row["samples"] == max(row["samples"] for row in rows)]
    slowest = max(row["wall"] for row in large)
    proved = min(row["fewest"] / row["problems"] for row in large)
    return (
        f"(c) {large[0]['samples']:,} samples with {large[0]['budget']:.0f} s for the solver (the default): "
        f"{slowest:.1f} s (goal {MAX_SECONDS:.0f} s: {_holds(slowest <= MAX_SECONDS)}; paper: 102 s on 208 vCPUs), "
        f"{max(row['greedy_wall'] for row in large):.1f} s without. Rounds packed in proved fewest microbatches within "
        f"the budget: {proved:.1%} (paper: {PAPER_PROVED:.1%} of its solves end within 10 s each)."
    )


def _bubble(rows: Sequence[Row]) -> str:
    shares = {row["adapters"]: row["ours_bubble"] for row in rows}
    four = next(row for row in rows if row["adapters"] == 4)
    listed = ", ".join(f"{share:.1%} with {count}" for count, share in shares.items())
    return (
        f"(d) Idle share of four stages: {listed} adapters (goal {MAX_BUBBLE:.0%} with 4: "
        f"{_holds(shares[4] <= MAX_BUBBLE)}; paper: 44.17, 15.00, 12.23, 11.09 % with 1 to 4). With 4 the simulator's "
        f"Megatron-LM idles {four['megatron_bubble']:.1%} (paper: 48.79 %), its mLoRA {four['mlora_bubble']:.1%} "
        "(paper: 34.11 %)."
    )


def _parts(rows: Sequence[Row]) -> str:
    names = {"greedy+solver": "the solver", "greedy+merge": "merging", "greedy+solver+merge": "both"}
    names["best-fill"] = "best-fill in their place"
    gains = {name: [1 - row[name] / row["greedy"] for row in rows] for name in names}
    listed = "; ".join(f"{text} {min(gains[name]):.1%} to {max(gains[name]):.1%}" for name, text in names.items())
    return f"(e) Sooner than greedy rounds, in simulated makespan: {listed}."


def _replanning(rows: Sequence[Row]) -> str:
    slowest = max(rows, key=lambda row: row["p80_ms"] / row["microbatch_ms"])
    within = all(row["p80_ms"] <= row["microbatch_ms"] for row in rows if row["stages"] == 1)
    return (
        f"(f) New plan after a job joins: {min(row['median_ms'] for row in rows):.0f} to "
        f"{max(row['median_ms'] for row in rows):.0f} ms of CPU; at most "
        f"{slowest['p80_ms'] / slowest['microbatch_ms']:.1f} times a microbatch ({slowest['stages']} stages, which "
        f"hold {slowest['stages']} of them); on one stage within the microbatch that runs: {_holds(within)}."
    )


def _holds(condition: bool) -> str:
    return "holds" if condition else "missed"
