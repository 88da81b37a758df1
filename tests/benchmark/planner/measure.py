"""What the planner's benchmark measures; each function gives rows of plain data."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from workloads import SETTINGS, Setting, build_log_normal_work, build_work

from multigraft.planner.baselines import FixedBatching, simulate_megatron, simulate_mlora
from multigraft.planner.best_fill import FillPolicy, fill_best
from multigraft.planner.bounds import bound_microbatches
from multigraft.planner.cost import CostModel
from multigraft.planner.horizon import plan_horizon
from multigraft.planner.merge import merge_microbatches
from multigraft.planner.order import order_microbatches
from multigraft.planner.packing import pack_first_fit_decreasing
from multigraft.planner.packing_task import PackingTask
from multigraft.planner.plan import JobWork, Microbatch, Plan, PlanLimits
from multigraft.planner.rolling import extend_plan, subtract_committed
from multigraft.planner.rounds import build_rounds, build_units
from multigraft.planner.simulate import simulate
from multigraft.planner.solver_pool import SolverPool
from multigraft.planner.verify import require_valid

COST = CostModel()
Row = dict[str, Any]


def measure_packing(tiles: Sequence[int], adapters: Sequence[int], num_steps: int) -> list[Row]:
    """Fill and microbatches at the paper's settings: first-fit decreasing in rounds, full best-fill, what would run."""
    rows = []
    for setting in SETTINGS:
        for num_adapters in adapters:
            work = build_work(setting, num_adapters, num_steps)
            rows += [_pack_one(setting.name, work, _limits(setting, tile)) for tile in tiles]
    return rows


def measure_spread(sigmas: Sequence[float], tile: int, num_steps: int) -> list[Row]:
    """The same for log-normal lengths of mean 1,000, one stage, from even to very uneven."""
    rows = []
    for sigma in sigmas:
        for num_adapters in (4, 8):
            for capacity in (4096, 8192):
                work = build_log_normal_work(
                    sigma, mean=1000, num_adapters=num_adapters, batch_size=8, num_steps=num_steps
                )
                rows.append({"sigma": sigma} | _pack_one("log-normal", work, PlanLimits(capacity, tile)))
    return rows


def _pack_one(name: str, work: Sequence[JobWork], limits: PlanLimits) -> Row:
    greedy = _rounds(work, limits, _pack_first_fit(work, limits), merge=False)
    full = _check(Plan(limits, tuple(fill_best(work, limits, FillPolicy(limits.token_capacity)))), work)
    chosen = plan_horizon(work, limits, solver_timeout_seconds=0)
    return {
        "setting": name,
        "adapters": len(work),
        "capacity": limits.token_capacity,
        "tile": limits.tile_tokens,
        "bound": bound_microbatches(work, limits),
        "greedy": greedy.num_microbatches,
        "full": full.num_microbatches,
        "chosen": chosen.num_microbatches,
        "greedy_fill": greedy.fill,
        "full_fill": full.fill,
        "chosen_fill": chosen.fill,
        "greedy_ms": _span(greedy),
        "full_ms": _span(full),
        "chosen_ms": _span(chosen),
    }


def measure_planning(
    num_samples: Sequence[int], setting: Setting, tiles: Sequence[int], budget_seconds: float
) -> list[Row]:
    """Seconds to plan that many samples of four adapters, without and with a solver within its budget."""
    return [_plan_one(count, setting, tile, budget_seconds) for count in num_samples for tile in tiles]


def _plan_one(num_samples: int, setting: Setting, tile: int, budget_seconds: float) -> Row:
    work = build_work(setting, 4, num_samples // (4 * setting.batch_size))
    limits = _limits(setting, tile)
    greedy, greedy_wall, greedy_cpu = _time(lambda: plan_horizon(work, limits, solver_timeout_seconds=0))
    with SolverPool() as solver:  # its processes start within the measured time
        plan, wall, cpu = _time(
            lambda: plan_horizon(work, limits, solver_timeout_seconds=budget_seconds, solver=solver)
        )
    use = plan.solver_use
    return {
        "samples": num_samples,
        "tile": tile,
        "budget": budget_seconds,
        "greedy_wall": greedy_wall,
        "greedy_cpu": greedy_cpu,
        "wall": wall,
        "cpu": cpu,
        "microbatches_greedy": greedy.num_microbatches,
        "microbatches": plan.num_microbatches,
        "bound": plan.lower_bound,
        "packer": plan.packer,
        "problems": use.num_problems,
        "asked": use.num_asked,
        "fewest_by_bound": greedy.solver_use.num_fewest,
        "fewest": use.num_fewest,
        "proved": use.num_proved,
        "failures": dict(use.failures),
    }


def measure_solver(setting: Setting, tile: int, num_steps: int, seconds_each: Sequence[float]) -> list[Row]:
    """Share of packing problems proved, by the time that each gets."""
    work = build_work(setting, 4, num_steps)
    units = build_units(work, _limits(setting, tile))
    open_units = [unit for unit in units if unit.is_solvable]
    first_fit = sum(max(bins) + 1 for bins in _pack_first_fit(work, _limits(setting, tile)))
    rows = []
    for seconds in seconds_each:
        with SolverPool() as solver:
            solver.solve([PackingTask(open_units[0].problem)], budget_seconds=30)  # start the processes
            budget = seconds * len(open_units) / len(solver.workers)
            batch = solver.solve([PackingTask(unit.problem) for unit in open_units], budget_seconds=budget)
        pairs = [(unit, one.reply) for unit, one in zip(open_units, batch.solved, strict=True)]
        known = [(unit, reply) for unit, reply in pairs if reply is not None]
        rows.append(
            {
                "seconds_each": seconds,
                "problems": len(units),
                "fewest_by_bound": sum(unit.is_fewest for unit in units),
                "fewest": sum(unit.is_fewest for unit in units)
                + sum(reply.fewest_proved and not unit.is_fewest for unit, reply in known),
                "both": sum(unit.is_proved for unit in units)
                + sum(reply.fewest_proved and reply.smallest_proved for _, reply in known),
                "bins_bound": sum(unit.problem.min_bins for unit in units),
                "bins_first_fit": first_fit,
                "bins_greedy": sum(max(unit.problem.greedy) + 1 for unit in units),
                "bins_solver": sum(max(unit.problem.greedy) + 1 for unit in units)
                - sum(max(unit.problem.greedy) + 1 - len(set(reply.bin_of)) for unit, reply in known),
                "fewer_bins": sum(len(set(reply.bin_of)) <= max(unit.problem.greedy) for unit, reply in known),
                "wall": batch.seconds,
            }
        )
    return rows


def measure_bubbles(adapters: Sequence[int], setting: Setting, tile: int, num_steps: int) -> list[Row]:
    """Idle share of four stages against the simulator's own Megatron-LM and mLoRA."""
    rows = []
    batching = FixedBatching(setting.batch_size // 4)
    for count in adapters:
        work = build_work(setting, count, num_steps)
        limits = _limits(setting, tile)
        plan = plan_horizon(work, limits, solver_timeout_seconds=0)
        timelines = {
            "ours": simulate(plan, COST),
            "megatron": simulate_megatron(work, limits, batching, COST),
            "mlora": simulate_mlora(work, limits, batching, COST),
        }
        row: Row = {"adapters": count, "no_ops": plan.num_no_ops, "fill": plan.fill}
        for name, timeline in timelines.items():
            row[f"{name}_bubble"] = timeline.bubble_ratio
            row[f"{name}_ms"] = timeline.makespan_ms
        rows.append(row)
    return rows


def measure_parts(settings: Sequence[Setting], tile: int, num_steps: int, budget_seconds: float) -> list[Row]:
    """What the solver and merging each add to greedy rounds, and best-fill beside them, in simulated makespan."""
    rows = []
    for setting in settings:
        work = build_work(setting, 4, num_steps)
        limits = _limits(setting, tile)
        greedy = _pack_first_fit(work, limits)
        units = [replace(unit.problem, greedy=one) for unit, one in zip(build_units(work, limits), greedy, strict=True)]
        with SolverPool() as solver:
            solved = solver.solve([PackingTask(unit) for unit in units], budget_seconds=budget_seconds).solved
        milp = [g if one.reply is None else one.reply.bin_of for g, one in zip(greedy, solved, strict=True)]
        plans = {
            "greedy": _rounds(work, limits, greedy, merge=False),
            "greedy+solver": _rounds(work, limits, milp, merge=False),
            "greedy+merge": _rounds(work, limits, greedy, merge=True),
            "greedy+solver+merge": _rounds(work, limits, milp, merge=True),
            "best-fill": plan_horizon(work, limits, solver_timeout_seconds=0),
        }
        rows.append({"setting": setting.name} | {name: _span(plan) for name, plan in plans.items()})
    return rows


def measure_replanning(num_stages: Sequence[int], tile: int, rounds: int) -> list[Row]:
    """CPU milliseconds from the arrival of a job to the plan that holds it; eight jobs, horizon of four steps."""
    rows = []
    for stages in num_stages:
        setting = SETTINGS[3]
        limits = PlanLimits(setting.token_capacity, tile, stages)
        jobs = build_work(setting, 9, 4)
        before = plan_horizon(jobs[:8], limits, solver_timeout_seconds=0)
        committed = before.microbatches[: len(before.microbatches) // 3]
        left = subtract_committed(jobs[:8], committed)
        times = [
            _time(lambda: extend_plan(committed, [*left, jobs[8]], limits))[2] * 1000  # noqa: B023
            for _ in range(rounds)
        ]
        step_ms = COST.estimate_ms(before.microbatches, tile).sum(axis=0)
        rows.append(
            {
                "stages": stages,
                "median_ms": statistics.median(times),
                "p20_ms": statistics.quantiles(times, n=5)[0],
                "p80_ms": statistics.quantiles(times, n=5)[3],
                "microbatch_ms": float(step_ms[step_ms > 1].mean() / stages),
            }
        )
    return rows


def measure_horizons(horizons: Sequence[int], num_steps: int, tiles: Sequence[int]) -> list[Row]:
    """Fill by the number of global batches in a plan: four adapters, batches of 8, 8,192 tokens, as on the GPU."""
    rows = []
    for name, datasets in (("XSum", "docstrings"), ("CNN/DM", "chitchat"), ("WikiSum", "manpages")):
        work = build_work(Setting(name, (datasets,), 8, 8192, 1), 4, num_steps)
        for tile in tiles:
            row: Row = {"setting": f"{name}-like", "tile": tile}
            for horizon in horizons:
                row[str(horizon)] = _fill_by_horizon(work, PlanLimits(8192, tile), horizon)
            rows.append(row)
    return rows


def _fill_by_horizon(work: Sequence[JobWork], limits: PlanLimits, horizon: int) -> float:
    """Give the mean fill of plans of `horizon` global batches of each job, one after the other."""
    num_steps = len(work[0].global_batches)
    parts = [
        [JobWork(job.job, job.global_batches[first : first + horizon]) for job in work]
        for first in range(0, num_steps, horizon)
    ]
    plans = [plan_horizon(part, limits, solver_timeout_seconds=0) for part in parts]
    tokens = sum(microbatch.num_tokens for plan in plans for microbatch in plan.microbatches)
    return tokens / (sum(plan.num_microbatches for plan in plans) * limits.token_capacity)


def _pack_first_fit(work: Sequence[JobWork], limits: PlanLimits) -> list[tuple[int, ...]]:
    """Pack every round by first-fit decreasing alone: what *greedy* means in these tables."""
    sizes = {"token_capacity": limits.token_capacity, "tile_tokens": limits.tile_tokens}
    return [tuple(pack_first_fit_decreasing(unit.items, **sizes).tolist()) for unit in build_units(work, limits)]


def _rounds(work: Sequence[JobWork], limits: PlanLimits, packings: Sequence[Sequence[int]], *, merge: bool) -> Plan:
    microbatches: list[Microbatch] = build_rounds(build_units(work, limits), packings, work, limits)
    if merge:
        microbatches = merge_microbatches(microbatches, limits)
    return _check(Plan(limits, tuple(order_microbatches(microbatches, limits))), work)


def _check(plan: Plan, work: Sequence[JobWork]) -> Plan:
    return require_valid(plan, work)


def _span(plan: Plan) -> float:
    return simulate(plan, COST).makespan_ms


def _limits(setting: Setting, tile: int) -> PlanLimits:
    return PlanLimits(setting.token_capacity, tile, setting.num_stages)


def _time(call: Callable[[], Plan]) -> tuple[Plan, float, float]:
    """Give the result, wall seconds and CPU seconds of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - wall, time.process_time() - cpu
