"""End to end on one GPU: four LoRA adapters on an 8B base in one shared run, and PEFT beside it in the same process.

Real tokens are tokens of samples, never padding. Every token but the first of a sample is supervised. A pass is the
same plan run from start to end, optimizer steps included; medians and p20/p80 are over passes and over microbatches.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import platform
import statistics
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import length_sets
import llama_8b
import numpy as np
import torch
import transformers

from multigraft.planner.horizon import plan_horizon
from multigraft.planner.plan import GlobalBatch, JobWork, Plan, PlanLimits, SampleRef
from multigraft_trainer.adapters.optimizer import AdapterOptimizer, OptimizerOptions
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.adapters.slots import AdapterOptions
from multigraft_trainer.backends.attention import ATTENTION_NAME
from multigraft_trainer.backends.packed import PackedMicrobatch
from multigraft_trainer.backends.transformers_backend import TransformersBackend
from multigraft_trainer.engine.pack_microbatch import SegmentSource, pack_microbatch
from multigraft_trainer.intake.samples import TokenisedSample

RANK, ALPHA, DROPOUT = 16, 32.0, 0.1
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
GLOBAL_BATCH = 8
ADAPTERS = 4


@dataclass
class Timing:
    """Times of one configuration."""

    name: str
    real_tokens_per_pass: int = 0
    pass_seconds: list[float] = field(default_factory=list)
    microbatch_tokens_per_second: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    fill: float | None = None
    note: str = ""

    def summarise(self) -> dict[str, Any]:
        rates = [self.real_tokens_per_pass / seconds for seconds in self.pass_seconds]
        return {
            "name": self.name,
            "tokensPerSecond": _spread(rates),
            "microbatchTokensPerSecond": _spread(self.microbatch_tokens_per_second),
            "realTokensPerPass": self.real_tokens_per_pass,
            "passes": len(rates),
            "peakGiB": round(self.peak_bytes / 2**30, 1),
            "fill": None if self.fill is None else round(self.fill, 4),
            "note": self.note,
        }


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    p20, p80 = np.percentile(values, [20, 80])
    return {"median": round(statistics.median(values), 1), "p20": round(float(p20), 1), "p80": round(float(p80), 1)}


def build_plan(lengths: list[list[int]], capacity: int) -> Plan:
    """Plan every global batch of every adapter."""
    work = [
        JobWork(
            f"job-{adapter}",
            tuple(
                GlobalBatch(step, tuple(SampleRef(draw, own[draw]) for draw in range(first, first + GLOBAL_BATCH)))
                for step, first in enumerate(range(0, len(own), GLOBAL_BATCH))
            ),
        )
        for adapter, own in enumerate(lengths)
    ]
    return plan_horizon(work, PlanLimits(token_capacity=capacity), solver_timeout_seconds=0)


def make_samples(lengths: list[int], seed: int, vocab_size: int) -> list[TokenisedSample]:
    """Make samples of random ids, every token but the first supervised."""
    generator = np.random.default_rng(seed)
    return [
        TokenisedSample(row + 1, generator.integers(0, vocab_size, n, dtype=np.int32), np.arange(n) > 0)
        for row, n in enumerate(lengths)
    ]


class SharedRun:
    """Four adapters on one backend, as the engine trains them."""

    def __init__(self, backend: TransformersBackend, lengths: list[list[int]], capacity: int) -> None:
        self.plan = build_plan(lengths, capacity)
        self._backend = backend
        self._samples = [make_samples(own, seed, backend.vocab_size) for seed, own in enumerate(lengths)]
        self._pool = SlotPool(
            backend.linears, max_slots=ADAPTERS, max_rank=RANK, device=backend.device, compute_dtype=backend.dtype
        )
        backend.attach(self._pool)
        names = backend.resolve_targets(["all-linear"]).names
        self._optimizers = []
        for seed in range(ADAPTERS):
            slot = self._pool.acquire(AdapterOptions(RANK, ALPHA, False, DROPOUT, seed, names))
            options = OptimizerOptions(learning_rate=1e-4, total_steps=10**6)
            self._optimizers.append(AdapterOptimizer(self._pool.adapter(slot), options))
        self._supervised: Counter[tuple[str, int]] = Counter()
        self._left: Counter[tuple[str, int]] = Counter()
        for segment in (segment for microbatch in self.plan.microbatches for segment in microbatch.segments):
            key = (segment.job, segment.step)
            self._supervised[key] += sum(ref.num_tokens - 1 for ref in segment.samples)
            self._left[key] += len(segment.samples)

    def run_pass(self, timing: Timing) -> None:
        """Run the plan once, optimizer steps included."""
        left, losses = Counter(self._left), Counter[tuple[str, int]]()
        torch.cuda.synchronize()
        start = time.perf_counter()
        microbatches = self.plan.microbatches
        packed = self.pack(microbatches[0])
        for microbatch, following in itertools.zip_longest(microbatches, microbatches[1:]):
            began = time.perf_counter()
            ahead: list[PackedMicrobatch] = []

            def look_ahead(following=following, ahead=ahead) -> None:  # type: ignore[no-untyped-def]
                if following is not None:
                    ahead.append(self.pack(following))
                    self._backend.prepare(ahead[0])

            values = self._backend.forward_backward(packed, meanwhile=look_ahead)
            packed = ahead[0] if ahead else packed
            for segment, loss in zip(microbatch.segments, values, strict=True):
                key = (segment.job, segment.step)
                losses[key] += loss  # type: ignore[assignment]
                left[key] -= len(segment.samples)
                if not left[key]:
                    self._optimizers[_index(segment.job)].step(losses[key], self._supervised[key])
            timing.microbatch_tokens_per_second.append(microbatch.num_tokens / (time.perf_counter() - began))
        torch.cuda.synchronize()
        timing.pass_seconds.append(time.perf_counter() - start)

    def pack(self, microbatch: Any) -> PackedMicrobatch:
        return pack_microbatch(
            [
                SegmentSource(
                    slot=_index(segment.job),
                    samples=tuple(self._samples[_index(segment.job)][ref.draw] for ref in segment.samples),
                    draws=tuple(ref.draw for ref in segment.samples),
                    step=segment.step,
                    loss_weight=1 / self._supervised[(segment.job, segment.step)],
                )
                for segment in microbatch.segments
            ]
        )

    def close(self) -> None:
        for slot in self._pool.occupied:
            self._pool.release(slot)


def _index(job: str) -> int:
    return int(job.rpartition("-")[2])


def time_shared(
    form: str, backend: TransformersBackend, lengths: list[list[int]], capacity: int, passes: int
) -> Timing:
    """Time the shared run; a few microbatches before it warm up kernels, the allocator and the clocks."""
    run = SharedRun(backend, lengths, capacity)
    timing = Timing(f"multigraft, {form}", sum(map(sum, lengths)), fill=run.plan.fill)
    for microbatch in run.plan.microbatches[:6]:
        backend.forward_backward(run.pack(microbatch))
    torch.cuda.reset_peak_memory_stats()
    for _ in range(passes):
        run.run_pass(timing)
    timing.peak_bytes = torch.cuda.max_memory_allocated()
    run.close()
    return timing


def profile_shared(backend: TransformersBackend, lengths: list[list[int]], capacity: int) -> str:
    """Give the kernels of one full microbatch by time."""
    run = SharedRun(backend, lengths, capacity)
    microbatch = run.pack(max(run.plan.microbatches, key=lambda one: one.num_tokens))
    backend.forward_backward(microbatch)
    torch.cuda.synchronize()
    began = time.perf_counter()
    backend.forward_backward(microbatch)
    torch.cuda.synchronize()
    print(f"{len(microbatch.input_ids)} tokens in {time.perf_counter() - began:.3f} s", flush=True)
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        backend.forward_backward(microbatch)
    run.close()
    return str(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=90))


def time_peft(lengths: list[int], passes: int, *, fp32_adapters: bool, microbatch: int, checkpointing: bool) -> Timing:
    """Time PEFT on one adapter: padded batches, SDPA, no packing; what a user without multigraft runs."""
    import peft

    kind = "fp32 adapters + autocast" if fp32_adapters else "bf16 adapters"
    name = f"PEFT, {kind}, microbatch {microbatch}{', checkpointing' if checkpointing else ''}"
    timing = Timing(name, sum(lengths))
    config = peft.LoraConfig(r=RANK, lora_alpha=int(ALPHA), lora_dropout=DROPOUT, target_modules=TARGETS)
    model = peft.get_peft_model(llama_8b.build_llama_8b("sdpa"), config, autocast_adapter_dtype=fp32_adapters)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    samples = make_samples(lengths, 0, llama_8b.CONFIG["vocab_size"])  # type: ignore[arg-type]

    def run(batches: list[list[TokenisedSample]]) -> None:
        for batch in batches:
            for first in range(0, len(batch), microbatch):
                part = batch[first : first + microbatch]
                ids, mask = _pad(part)
                labels = ids.masked_fill(mask == 0, -100)
                with torch.autocast("cuda", torch.bfloat16, enabled=fp32_adapters):
                    loss = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
                (loss * len(part) / len(batch)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    batches = [samples[first : first + GLOBAL_BATCH] for first in range(0, len(samples), GLOBAL_BATCH)]
    run(batches[:1])
    torch.cuda.reset_peak_memory_stats()
    for _ in range(passes):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(batches)
        torch.cuda.synchronize()
        timing.pass_seconds.append(time.perf_counter() - start)
    timing.peak_bytes = torch.cuda.max_memory_allocated()
    return timing


def _pad(samples: list[TokenisedSample]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(sample.num_tokens for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, sample in enumerate(samples):
        ids[row, : sample.num_tokens] = torch.from_numpy(sample.input_ids.astype(np.int64))
        mask[row, : sample.num_tokens] = 1
    return ids.cuda(), mask.cuda()


def measure_gemm_limit(num_tokens: int) -> float:
    """Give the tokens per second of the big GEMMs alone: forward and input gradient of every linear and the head."""
    config = llama_8b.CONFIG
    hidden, wide, vocab = (int(config[key]) for key in ("hidden_size", "intermediate_size", "vocab_size"))  # type: ignore[call-overload]
    layer = [(hidden, hidden), (1024, hidden), (1024, hidden), (hidden, hidden), (wide, hidden), (wide, hidden)]
    shapes = [(32, N, K) for N, K in [*layer, (hidden, wide)]] + [(1, vocab, hidden)]
    total = 0.0
    for count, N, K in shapes:
        weight = torch.randn(N, K, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(num_tokens, K, device="cuda", dtype=torch.bfloat16)
        dy = torch.randn(num_tokens, N, device="cuda", dtype=torch.bfloat16)
        total += count * (_time_ms(lambda: x @ weight.T) + _time_ms(lambda: dy @ weight))  # noqa: B023
    return num_tokens / total * 1e3


def _time_ms(call: Callable[[], Any], repeats: int = 10) -> float:
    for _ in range(3):
        call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    for event in events[:-1]:
        event.record()
        call()
    events[-1].record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events))


# What a user may pick; padded batches of 4 or 8 samples of up to 4,096 tokens do not fit without checkpointing.
PEFT_SETTINGS: tuple[dict[str, Any], ...] = (
    {"fp32_adapters": False, "microbatch": 2, "checkpointing": False},
    {"fp32_adapters": True, "microbatch": 4, "checkpointing": True},
    {"fp32_adapters": False, "microbatch": 4, "checkpointing": False},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="+", default=list(length_sets.LENGTH_SETS))
    parser.add_argument("--capacity", type=int, default=8192, help="tokens of one microbatch")
    parser.add_argument("--steps", type=int, default=4, help="global batches of each adapter in one pass")
    parser.add_argument("--forms", nargs="+", choices=["plain", "fused"], default=["plain", "fused"])
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations in our run")
    parser.add_argument("--profile", action="store_true", help="print the kernels of one microbatch of each form")
    parser.add_argument("--peft", type=int, default=len(PEFT_SETTINGS), help="how many of PEFT's settings to time")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_end_to_end.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    lengths = {
        name: [
            length_sets.draw_lengths(name, arguments.steps * GLOBAL_BATCH, 100 + adapter) for adapter in range(ADAPTERS)
        ]
        for name in arguments.sets
    }
    result: dict[str, Any] = {"environment": describe_environment(), "arguments": vars(arguments) | {"out": ""}}
    result["gemmLimitTokensPerSecond"] = round(measure_gemm_limit(arguments.capacity))
    print(json.dumps(result), flush=True)
    result["sets"] = {name: [] for name in arguments.sets}
    for form in arguments.forms:
        began = time.perf_counter()
        backend = TransformersBackend(
            llama_8b.build_llama_8b(ATTENTION_NAME),
            gradient_checkpointing=arguments.checkpointing,
            fused=form == "fused",
        )
        print(f"{form}: base made and checked in {time.perf_counter() - began:.1f} s", flush=True)
        if arguments.profile:
            text = profile_shared(backend, lengths[arguments.sets[0]], arguments.capacity)
            arguments.out.with_suffix(f".{form}.profile.txt").write_text(text)
            print(text)
        else:
            for name, own in lengths.items():
                timing = time_shared(form, backend, own, arguments.capacity, arguments.passes)
                result["sets"][name].append(_report(name, timing))
            arguments.out.write_text(json.dumps(result, indent=1))
        del backend
        _free()
    if arguments.profile:
        return
    for name in arguments.sets:
        for settings in PEFT_SETTINGS[: arguments.peft]:
            result["sets"][name].append(_report(name, _time_peft_or_note(lengths[name][0], settings)))
            arguments.out.write_text(json.dumps(result, indent=1))


def _time_peft_or_note(lengths: list[int], settings: dict[str, Any]) -> Timing:
    try:
        return time_peft(lengths, 2, **settings)
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)  # they hold the model
        return Timing(f"PEFT {settings}", note="out of memory")
    finally:
        _free()


def _free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _report(name: str, timing: Timing) -> dict[str, Any]:
    summary = timing.summarise()
    print(name, json.dumps(summary), flush=True)
    return summary


def _run_nvidia_smi() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()


def describe_environment() -> dict[str, str]:
    """Name what the numbers depend on."""
    import peft

    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": _run_nvidia_smi(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
