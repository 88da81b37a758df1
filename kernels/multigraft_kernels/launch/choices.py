"""What a launch may choose: block sizes in elements, counts of warps, depths of software pipelines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# "portable": Triton, and cuBLAS accumulates onto the adapters' part. "mixed": Triton reads x and dy, a Gluon GEMM
# for Hopper
# holds the adapters' part inside. "hopper": Gluon reads too, by TMA, and the mask of dx is made inside the GEMM
Path = Literal["portable", "mixed", "hopper"]


@dataclass(frozen=True)
class ShrinkLaunch:
    """Reading x in forward, portable."""

    block_t: int = 32
    block_k: int = 128
    min_block_r: int = 64  # wgmma's least left operand; ranks below are padded in the kernel
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class GradOutputLaunch:
    """Reading dy in backward, portable."""

    block_t: int = 64
    block_n: int = 128
    chunk_rows: int = 1024
    min_block_r: int = 64
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class InputLaunch:
    """Reading x in backward, portable."""

    block_t: int = 32
    block_k: int = 128
    chunk_rows: int = 512
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
class HopperShrinkLaunch:
    """Reading x in forward on Hopper."""

    split: int = 1024  # features per program
    num_stages: int = 3


@dataclass(frozen=True)
class HopperGradOutputLaunch:
    """Reading dy in backward on Hopper."""

    block_n: int = 256  # outputs per program, for ranks up to 64
    chunk_rows: int = 1024
    num_stages: int = 2


@dataclass(frozen=True)
class HopperInputLaunch:
    """Reading x in backward on Hopper."""

    block_k: int = 128
    chunk_rows: int = 1024
    num_stages: int = 3


@dataclass(frozen=True)
class HopperGemmLaunch:
    """The base GEMM with the adapters' part inside."""

    block_o: int = 256
    num_stages: int = 3
    group: int = 4
    out_buffers: int = 1


@dataclass(frozen=True)
class PortableLaunch:
    """What Triton launches for one linear layer."""

    shrink: ShrinkLaunch = field(default_factory=ShrinkLaunch)
    grad_output: GradOutputLaunch = field(default_factory=GradOutputLaunch)
    input: InputLaunch = field(default_factory=InputLaunch)
    added: AddedLaunch = field(default_factory=AddedLaunch)


@dataclass(frozen=True)
class HopperLaunch:
    """What Gluon launches for one linear layer."""

    shrink: HopperShrinkLaunch = field(default_factory=HopperShrinkLaunch)
    grad_output: HopperGradOutputLaunch = field(default_factory=HopperGradOutputLaunch)
    input: HopperInputLaunch = field(default_factory=HopperInputLaunch)
    gemm_forward: HopperGemmLaunch = field(default_factory=HopperGemmLaunch)
    gemm_backward: HopperGemmLaunch = field(default_factory=HopperGemmLaunch)
    beside: bool = True  # gradients of A run on another stream, on the multiprocessors that the GEMM's rounds leave


@dataclass(frozen=True)
class LaunchChoice:
    """Which path a linear layer takes, and its launches."""

    path: Path
    portable: PortableLaunch = field(default_factory=PortableLaunch)
    hopper: HopperLaunch = field(default_factory=HopperLaunch)
