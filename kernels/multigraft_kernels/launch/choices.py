"""What a launch may choose; each field is a block size in elements, a count of warps, or a depth of the software pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# "hopper": Gluon GEMM with the adapters' part inside. "added": the adapters' part by Triton, then cuBLAS accumulates onto it
BaseGemm = Literal["hopper", "added"]


@dataclass(frozen=True)
class ShrinkLaunch:
    """Reading x in forward."""

    block_t: int = 32
    block_k: int = 128
    min_block_r: int = 64  # wgmma's least left operand; ranks below are padded in the kernel
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class GradOutputLaunch:
    """Reading dy in backward."""

    block_t: int = 64
    block_n: int = 128
    chunk_rows: int = 1024
    min_block_r: int = 64
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class InputLaunch:
    """Reading x in backward."""

    block_t: int = 64
    block_k: int = 128
    chunk_rows: int = 1024
    min_block_r: int = 64
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class AddedLaunch:
    """The adapters' part by itself, onto which cuBLAS accumulates."""

    block_o: int = 128
    block_r: int = 64
    num_warps: int = 8
    num_stages: int = 1


@dataclass(frozen=True)
class HopperGemmLaunch:
    """The base GEMM with the adapters' part inside."""

    block_o: int = 256
    num_stages: int = 4
    group: int = 8


@dataclass(frozen=True)
class LaunchChoice:
    """All launches of one linear layer."""

    base_forward: BaseGemm
    base_backward: BaseGemm
    shrink: ShrinkLaunch = field(default_factory=ShrinkLaunch)
    grad_output: GradOutputLaunch = field(default_factory=GradOutputLaunch)
    input: InputLaunch = field(default_factory=InputLaunch)
    added: AddedLaunch = field(default_factory=AddedLaunch)
    gemm_forward: HopperGemmLaunch = field(default_factory=HopperGemmLaunch)
    gemm_backward: HopperGemmLaunch = field(default_factory=HopperGemmLaunch)
