"""Many LoRA adapters on one frozen linear layer, each on its own token rows; usable without the rest of multigraft."""

from multigraft_kernels.counter_dropout import DropoutRows, DropoutTable, build_threshold
from multigraft_kernels.multi_lora.dispatch import PathChoice, choose_path, multi_lora_linear
from multigraft_kernels.multi_lora.segments import LoraGrads, LoraSegment

__all__ = [
    "DropoutRows",
    "DropoutTable",
    "LoraGrads",
    "LoraSegment",
    "PathChoice",
    "build_threshold",
    "choose_path",
    "multi_lora_linear",
]
