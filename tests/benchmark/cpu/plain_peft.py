"""What a user does without multigraft: Transformers, PEFT and torch, one job per process, padded batches.

The rows, their tokens and their order come from our intake, so that both sides train on the same batches. Prints one
JSON line: steps, losses, seconds of training.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, get_scheduler
from transformers.utils.logging import disable_progress_bar

from multigraft.api.adapter_job import AdapterJob, LrSchedulerType
from multigraft.manifests.load import load_manifests
from multigraft.planner.sample_order import SampleOrder
from multigraft_trainer.intake.load import load_dataset
from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.samples import TokenisedSample
from multigraft_trainer.intake.tokenizer import load_tokenizer

IGNORED_LABEL = -100
SCHEDULES = {
    LrSchedulerType.LINEAR: "linear",
    LrSchedulerType.COSINE: "cosine",
    LrSchedulerType.CONSTANT: "constant",
    LrSchedulerType.CONSTANT_WITH_WARMUP: "constant_with_warmup",
}


def train(job: AdapterJob, base: Path, rows: Path, adapter: Path) -> dict[str, object]:
    """Train one job; gives what is printed."""
    samples = load_dataset(
        rows,
        options=IntakeOptions.from_spec(job.spec.dataset, job.spec.training),
        tokenizer=load_tokenizer(base),
        embedding_rows=10**9,
    ).samples
    training = job.spec.training
    model = build_model(job, base)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=float(training.learning_rate), weight_decay=float(training.weight_decay)
    )
    scheduler = get_scheduler(
        SCHEDULES[training.lr_scheduler_type],
        optimizer,
        num_warmup_steps=training.warmup_steps,
        num_training_steps=training.max_steps,
    )
    order = SampleOrder(seed=training.seed, num_samples=len(samples), global_batch_size=training.global_batch_size)
    losses, num_tokens, started = [], 0, time.perf_counter()
    for step in range(training.max_steps or 0):
        batch = [samples[row] for row in order.rows(step)]
        loss = model(**pad(batch)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, float(training.max_grad_norm))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        num_tokens += sum(sample.num_tokens for sample in batch)
    seconds = time.perf_counter() - started
    model.save_pretrained(adapter)
    return {"job": job.key, "losses": losses, "trainSeconds": seconds, "numTokens": num_tokens}


def build_model(job: AdapterJob, base: Path) -> torch.nn.Module:
    """Load the base in fp32 and put the job's LoRA layers in."""
    lora = job.spec.lora
    targets = "all-linear" if lora.target_modules == ["all-linear"] else list(lora.target_modules)
    config = LoraConfig(
        r=lora.r,
        lora_alpha=float(lora.lora_alpha),
        lora_dropout=float(lora.lora_dropout),
        use_rslora=lora.use_rslora,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(job.spec.training.seed)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    return model.train()


def pad(batch: list[TokenisedSample]) -> dict[str, torch.Tensor]:
    """Pad a global batch to its longest sample."""
    length = max(sample.num_tokens for sample in batch)
    input_ids = torch.zeros(len(batch), length, dtype=torch.long)
    attention_mask = torch.zeros(len(batch), length, dtype=torch.long)
    labels = torch.full((len(batch), length), IGNORED_LABEL, dtype=torch.long)
    for row, sample in enumerate(batch):
        ids = torch.from_numpy(sample.input_ids.astype("int64"))
        input_ids[row, : len(ids)] = ids
        attention_mask[row, : len(ids)] = 1
        labels[row, : len(ids)] = torch.where(torch.from_numpy(sample.supervised), ids, IGNORED_LABEL)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, help="manifest of one AdapterJob")
    parser.add_argument("base", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("adapter", type=Path, help="where the adapter goes")
    options = parser.parse_args()
    disable_progress_bar()
    (job,) = load_manifests([options.job]).jobs
    print(json.dumps(train(job, options.base, options.rows, options.adapter)))


if __name__ == "__main__":
    main()
