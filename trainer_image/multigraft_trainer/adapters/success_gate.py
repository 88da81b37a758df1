"""The success gate: an adapter counts if, read back from disk, it is whole, finite, its own, and has an effect."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.adapter import Adapter
from multigraft_trainer.adapters.optimizer import Progress
from multigraft_trainer.adapters.peft_config import WEIGHTS_FILE
from multigraft_trainer.adapters.peft_tensors import Shape, describe_mismatch, find_nonfinite
from multigraft_trainer.adapters.tensor_file import read_headers, read_tensors


def check_work(progress: Progress) -> None:
    """Refuse a job that never learnt anything.

    Raises:
        RefusalError: NO_WORK, if no step was applied, no token supervised, or the learning rate was always 0.
    """
    skipped = (
        f"{progress.skipped_nonfinite} skipped as not finite, {progress.skipped_no_tokens} without supervised token"
    )
    if progress.updates == 0:
        raise RefusalError(Reason.NO_WORK, f"no optimizer step was applied: {progress.step} taken, {skipped}")
    if progress.supervised_tokens == 0:
        raise RefusalError(Reason.NO_WORK, f"no supervised token in {progress.updates} steps")
    if progress.peak_learning_rate == 0:
        raise RefusalError(Reason.NO_WORK, f"the learning rate was 0 in each of {progress.updates} applied steps")


def check_export(folder: Path, adapter: Adapter) -> dict[str, torch.Tensor]:
    """Read an export back and compare it with the adapter that it should be; gives its tensors on the CPU.

    Raises:
        RefusalError: EXPORT_INVALID if keys, shapes or values are not the adapter's; NON_FINITE; NO_WORK if every
            lora_B is zero, which is what an untrained adapter has.
    """
    path = folder / WEIGHTS_FILE
    try:
        tensors = _read_exactly(path, adapter.shapes)
    except ValueError as error:
        raise RefusalError(Reason.EXPORT_INVALID, f"{folder}: {error}") from error
    key = find_nonfinite(tensors)
    if key is not None:
        raise RefusalError(Reason.NON_FINITE, f"{path}: {key} holds NaN or infinity")
    for key, master in adapter.named_weights().items():
        if not torch.equal(tensors[key], master.detach().to("cpu", tensors[key].dtype)):
            raise RefusalError(Reason.EXPORT_INVALID, f"{path}: {key} is not what the job trained")
    if not any(tensor.any() for key, tensor in tensors.items() if key.endswith(".lora_B.weight")):
        raise RefusalError(Reason.NO_WORK, f"{path}: every lora_B is zero, so the adapter changes nothing")
    return tensors


def _read_exactly(path: Path, want: Mapping[str, Shape]) -> dict[str, torch.Tensor]:
    mismatch = describe_mismatch({key: header.shape for key, header in read_headers(path).items()}, want)
    if mismatch:
        raise ValueError(f"{path.name}: {mismatch}")
    return read_tensors(path, want)


def check_effect(adapter: Adapter, exported: Mapping[str, torch.Tensor], probe: Callable[[bool], float]) -> None:
    """Run a probe text with the exported tensors in the adapter's own slot and without, and want different logits.

    No second copy of the base is needed. The compute copy is the master's again afterwards.

    Args:
        probe: Gives the probe's sum of token losses in nats, with the adapter (True) or the base alone (False).

    Raises:
        RefusalError: NON_FINITE; EXPORT_INVALID if the adapter changes no logit at the base's precision.
    """
    adapter.publish(exported)
    try:
        with_adapter, without = probe(True), probe(False)
    finally:
        adapter.publish()
    if not math.isfinite(with_adapter) or not math.isfinite(without):
        raise RefusalError(
            Reason.NON_FINITE,
            f"loss of the probe text: {with_adapter} with the adapter, {without} without, want finite",
        )
    if with_adapter == without:
        raise RefusalError(
            Reason.EXPORT_INVALID,
            f"the adapter does not change the loss of the probe text ({without} nats) at the base's precision; "
            "training.learningRate or the number of steps is too small",
        )


def check_success(folder: Path, adapter: Adapter, progress: Progress, probe: Callable[[bool], float]) -> None:
    """Let a job succeed: work done, export whole and its own, and an effect on the base. Raises as the three checks."""
    check_work(progress)
    check_effect(adapter, check_export(folder, adapter), probe)
