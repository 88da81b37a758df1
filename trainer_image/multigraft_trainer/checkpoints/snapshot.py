"""Take everything of a running job that a checkpoint needs, and put it back."""

from __future__ import annotations

from dataclasses import asdict, fields

from multigraft.api.reasons import Reason
from multigraft.api.rules import JsonObject
from multigraft_trainer.adapters.adapter import Adapter
from multigraft_trainer.adapters.optimizer import AdapterOptimizer, Progress
from multigraft_trainer.checkpoints.checkpoint_folder import AdapterSnapshot
from multigraft_trainer.checkpoints.records import CheckpointState, code_version
from multigraft_trainer.checkpoints.training_spec import hash_spec


def take_snapshot(
    adapter: Adapter,
    optimizer: AdapterOptimizer,
    *,
    job: str,
    draws: int,
    spec: JsonObject,
    peft_config: JsonObject,
    plan_hash: str | None = None,
    summary: JsonObject | None = None,
) -> AdapterSnapshot:
    """Copy the state of one job to the CPU, at a step boundary.

    Args:
        draws: Samples that the job has drawn from its endless order so far.
        spec: `training_spec.build_training_spec` of the job.
        plan_hash: Hash of the plan that ran up to here.
        summary: Whatever the engine wants back: losses, tokens, seconds; NaN in it comes back as None.
    """
    state = CheckpointState(
        **asdict(optimizer.progress),
        code_version=code_version(),
        job=job,
        total_steps=optimizer.options.total_steps,
        draws=draws,
        seed=adapter.options.seed,
        spec=spec,
        spec_hash=hash_spec(spec),
        plan_hash=plan_hash,
        summary=summary or {},
    )
    return AdapterSnapshot(
        state=state,
        peft_config=peft_config,
        weights={key: tensor.detach().to("cpu", copy=True) for key, tensor in adapter.named_weights().items()},
        moments={key: tensor.detach().to("cpu", copy=True) for key, tensor in adapter.named_moments().items()},
    )


def restore_snapshot(snapshot: AdapterSnapshot, adapter: Adapter) -> Progress:
    """Put weights and moments into a freshly acquired adapter and give the counters for its optimizer.

    Raises:
        RefusalError: INVALID_CHECKPOINT, if a key is missing or extra or a shape differs; names it.
    """
    adapter.load_moments(snapshot.moments, reason=Reason.INVALID_CHECKPOINT)
    adapter.load_weights(snapshot.weights, reason=Reason.INVALID_CHECKPOINT)
    return Progress(**{field.name: getattr(snapshot.state, field.name) for field in fields(Progress)})
