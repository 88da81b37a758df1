"""The runs behind the loss curves: jobs on our backend, together or alone, and one job with PEFT.

All runs of a job see the same global batches in the same order, start from the same weights (another seed: others), and
take the same optimizer with the same schedule. PEFT draws its dropout from torch's generator, ours from its counters.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from loss_curve_jobs import JOBS, CurveJob, load_rows

from multigraft.planner.horizon import plan_horizon
from multigraft.planner.plan import Microbatch, PlanLimits
from multigraft_trainer.adapters.optimizer import AdapterOptimizer
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.adapters.slots import AdapterOptions
from multigraft_trainer.backends.attention import ATTENTION_NAME
from multigraft_trainer.backends.transformers_backend import TransformersBackend
from multigraft_trainer.engine.pack_microbatch import SegmentSource, pack_microbatch
from multigraft_trainer.intake.samples import TokenisedSample

CAPACITY = 8192
IGNORED_LABEL = -100

# SmolLM2-135M's shape, for the case that its weights are not at hand.
RANDOM_CONFIG: dict[str, Any] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49_152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "initializer_range": 0.04,
    "use_cache": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class RunSetting:
    """What all runs share."""

    base: Path | None  # None: random weights
    device: str
    dtype: torch.dtype
    num_steps: int
    num_rows: int


def build_model(setting: RunSetting, attention: str) -> Any:
    """Load the base, or make the random one, which is the same every time."""
    if setting.base is not None:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            setting.base, dtype=setting.dtype, attn_implementation=attention, local_files_only=True
        )
    else:
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(**RANDOM_CONFIG), dtype=setting.dtype, attn_implementation=attention
        )
    model.config.use_cache = False
    return model.to(setting.device).eval().requires_grad_(False)


def run_ours(jobs: tuple[CurveJob, ...], setting: RunSetting) -> dict[str, list[float]]:
    """Train the jobs together on one base; gives each job's loss by step."""
    backend = TransformersBackend(build_model(setting, ATTENTION_NAME))
    rows = _take_rows(setting)
    slots = SlotPool(
        backend.linears,
        max_slots=len(jobs),
        max_rank=max(job.rank for job in JOBS),
        device=setting.device,
        compute_dtype=setting.dtype,
    )
    backend.attach(slots)
    slot_of = {job.name: slots.acquire(_build_options(job, backend, job.seed)) for job in jobs}
    optimizers = {
        job.name: AdapterOptimizer(slots.adapter(slot_of[job.name]), job.build_optimizer_options(setting.num_steps))
        for job in jobs
    }
    work = [job.build_work(rows[job.name], setting.num_steps) for job in jobs]
    plan = plan_horizon(work, PlanLimits(token_capacity=CAPACITY), solver_timeout_seconds=0)
    orders = {job.name: job.build_order(rows[job.name]) for job in jobs}
    supervised: Counter[tuple[str, int]] = Counter()
    left: Counter[tuple[str, int]] = Counter()
    for segment in (segment for microbatch in plan.microbatches for segment in microbatch.segments):
        own = rows[segment.job]
        key = (segment.job, segment.step)
        left[key] += len(segment.samples)
        supervised[key] += sum(own[orders[segment.job].row(ref.draw)].num_supervised for ref in segment.samples)
    loss_sums: dict[tuple[str, int], float] = {}
    losses: dict[str, list[float]] = {job.name: [] for job in jobs}

    def pack(microbatch: Microbatch) -> Any:
        return pack_microbatch(
            [
                SegmentSource(
                    slot=slot_of[segment.job],
                    samples=tuple(rows[segment.job][orders[segment.job].row(ref.draw)] for ref in segment.samples),
                    draws=tuple(ref.draw for ref in segment.samples),
                    step=segment.step,
                    loss_weight=1 / supervised[segment.job, segment.step],
                )
                for segment in microbatch.segments
            ]
        )

    for microbatch in plan.microbatches:
        values = backend.forward_backward(pack(microbatch))
        for segment, value in zip(microbatch.segments, values, strict=True):
            key = (segment.job, segment.step)
            loss_sums[key] = loss_sums.get(key, 0.0) + value
            left[key] -= len(segment.samples)
            if not left[key]:
                result = optimizers[segment.job].step(loss_sums.pop(key), supervised[key])
                losses[segment.job].append(float("nan") if result.loss is None else result.loss)
    return losses


def run_peft(job: CurveJob, setting: RunSetting, *, seed: int) -> list[float]:
    """Train one job with PEFT as a user would: padded batches, fp32 adapters on the base in its own dtype.

    Args:
        seed: Of the initial weights (drawn as ours are) and of the dropout; the order of the samples stays the job's.
    """
    import peft

    config = peft.LoraConfig(
        r=job.rank,
        lora_alpha=int(job.alpha),
        lora_dropout=job.dropout,
        target_modules=list(job.targets),
        task_type="CAUSAL_LM",
    )
    initial = _draw_initial(job, setting, seed)
    model = peft.get_peft_model(build_model(setting, "sdpa"), config)
    parameters = dict(model.named_parameters())
    for key, value in initial.items():
        name = key.replace(".lora_A.weight", ".lora_A.default.weight").replace(
            ".lora_B.weight", ".lora_B.default.weight"
        )
        parameters[name].data.copy_(value)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    options = job.build_optimizer_options(setting.num_steps)
    optimizer = torch.optim.AdamW(trained, lr=job.learning_rate, weight_decay=0.0, eps=options.epsilon)
    schedule = transformers.get_scheduler(
        {"Linear": "linear", "Cosine": "cosine", "Constant": "constant", "ConstantWithWarmup": "constant_with_warmup"}[
            job.schedule.value
        ],
        optimizer,
        num_warmup_steps=job.warmup_steps,
        num_training_steps=setting.num_steps,
    )
    rows = _take_rows(setting)[job.name]
    order = job.build_order(rows)
    torch.manual_seed(seed)
    losses = []
    for step in range(setting.num_steps):
        loss = model(**_pad([rows[row] for row in order.rows(step)], setting.device), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, options.max_grad_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in torch.stack(losses).cpu()]


def _draw_initial(job: CurveJob, setting: RunSetting, seed: int) -> dict[str, torch.Tensor]:
    """Give the weights that an adapter of ours starts from, by PEFT key."""
    backend = TransformersBackend(build_model(setting, ATTENTION_NAME))
    slots = SlotPool(
        backend.linears, max_slots=1, max_rank=job.rank, device=setting.device, compute_dtype=setting.dtype
    )
    slot = slots.acquire(_build_options(job, backend, seed))
    return {key: value.detach().clone() for key, value in slots.adapter(slot).named_weights().items()}


def _build_options(job: CurveJob, backend: TransformersBackend, seed: int) -> AdapterOptions:
    names = backend.resolve_targets(list(job.targets)).names
    return AdapterOptions(job.rank, job.alpha, False, job.dropout, seed, names)


def _take_rows(setting: RunSetting) -> dict[str, list[TokenisedSample]]:
    return {name: samples[: setting.num_rows] for name, samples in load_rows().items()}


def _pad(samples: list[TokenisedSample], device: str) -> dict[str, torch.Tensor]:
    longest = max(sample.num_tokens for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, IGNORED_LABEL)
    for row, sample in enumerate(samples):
        own = torch.from_numpy(sample.input_ids.astype("int64"))
        ids[row, : len(own)] = own
        mask[row, : len(own)] = 1
        labels[row, : len(own)] = own.where(torch.from_numpy(sample.supervised), torch.tensor(IGNORED_LABEL))
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device), "labels": labels.to(device)}
