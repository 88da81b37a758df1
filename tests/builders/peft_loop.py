"""The reference for exactness: plain PEFT and torch, one adapter, one sample per forward; only the order is ours."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from transformers import AutoModelForCausalLM, get_scheduler

from multigraft_trainer.engine.job_run import PreparedJob

_SCHEDULES = {
    "Linear": "linear",
    "Cosine": "cosine",
    "Constant": "constant",
    "ConstantWithWarmup": "constant_with_warmup",
}


def train_with_peft(
    base: Path, prepared: PreparedJob, initial: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train a job with PEFT from the given initial weights; gives the final weights by PEFT key and the step losses."""
    options, training = prepared.options, prepared.job.spec.training
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        use_rslora=options.use_rslora,
        target_modules=list(options.target_names),
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, config)
    _set_weights(model, initial)
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters,
        lr=float(training.learning_rate),
        betas=(float(training.adam_beta1), float(training.adam_beta2)),
        eps=float(training.adam_epsilon),
        weight_decay=float(training.weight_decay),
    )
    total_steps = prepared.optimizer_options.total_steps
    schedule = get_scheduler(
        _SCHEDULES[training.lr_scheduler_type.value],
        optimizer,
        num_warmup_steps=training.warmup_steps,
        num_training_steps=total_steps,
    )
    order = prepared.build_order()
    losses = []
    for step in range(total_steps):
        losses.append(_accumulate(model, prepared, order.rows(step)))
        max_norm = float(training.max_grad_norm)
        if max_norm:
            torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    weights = {key: value.detach().clone() for key, value in get_peft_model_state_dict(model).items()}
    return weights, losses


def _accumulate(model: torch.nn.Module, prepared: PreparedJob, rows: list[int]) -> float:
    samples = [prepared.dataset.samples[row] for row in rows]
    num_supervised = sum(sample.num_supervised for sample in samples)
    total = 0.0
    for sample in samples:
        ids = torch.from_numpy(sample.input_ids.astype("int64"))[None]
        logits = model(input_ids=ids, use_cache=False).logits[0]
        targets = torch.where(torch.from_numpy(sample.supervised), ids[0], -100)
        loss = torch.nn.functional.cross_entropy(logits[:-1].float(), targets[1:], reduction="sum", ignore_index=-100)
        (loss / num_supervised).backward()
        total += float(loss.detach())
    return total / num_supervised


def _set_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    own = dict(model.named_parameters())
    for key, value in weights.items():
        name = key.replace(".lora_A.weight", ".lora_A.default.weight").replace(
            ".lora_B.weight", ".lora_B.default.weight"
        )
        own[name].data.copy_(value)
