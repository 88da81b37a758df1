"""README.md of an exported adapter: what it is, how to load it, which rank limit a server needs."""

from __future__ import annotations

import json

from multigraft_trainer.adapters.peft_config import BaseModelName
from multigraft_trainer.adapters.slots import AdapterOptions

DEFAULT_SERVER_RANK = 16
# Source: vllm/config/lora.py, MaxLoRARanks; a server accepts an adapter of lower rank than its limit.
SERVER_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def decide_server_rank(rank: int) -> int:
    """Choose the smallest rank limit of vLLM that takes an adapter of this rank.

    Raises:
        ValueError: If no limit does.
    """
    fitting = [limit for limit in SERVER_RANKS if limit >= rank]
    if not fitting:
        raise ValueError(f"rank: got {rank}, servers take at most {SERVER_RANKS[-1]}")
    return fitting[0]


def build_model_card(title: str, options: AdapterOptions, base: BaseModelName, *, num_parameters: int) -> str:
    """Build the text; the front matter is YAML whose strings are quoted as JSON."""
    limit = decide_server_rank(options.rank)
    beyond = (
        f" (rank {options.rank} is over its default of {DEFAULT_SERVER_RANK})" if limit > DEFAULT_SERVER_RANK else ""
    )
    scale = "alpha / sqrt(rank)" if options.use_rslora else "alpha / rank"
    return f"""---
base_model: {json.dumps(base.name)}
library_name: peft
pipeline_tag: text-generation
tags: [lora, multigraft]
---
# {title}

LoRA adapter for `{base.name}`{f" at revision `{base.revision}`" if base.revision else ""}, trained with multigraft.

| rank | alpha | update scale | parameters | linear layers |
|---|---|---|---|---|
| {options.rank} | {options.alpha:g} | {options.scaling:g} ({scale}) | {num_parameters} | {len(options.target_names)} |

Load it with PEFT: `PeftModel.from_pretrained(base_model, "<this folder>")`.

Serve it with vLLM: `--enable-lora --max-lora-rank {limit}`{beyond}.
"""
