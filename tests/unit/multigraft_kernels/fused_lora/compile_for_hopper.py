"""Compile the Gluon kernels for sm_90 without a GPU and print, per kernel, registers spilled and shared memory.

Run as a program, in its own process: with TRITON_INTERPRET=1, as the other tests have it, nothing is compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from multigraft_kernels.fused_lora import hopper_gemm, hopper_grad_output, hopper_input, hopper_shrink

DTYPE_NAMES = {gl.bfloat16: "bf16", gl.float16: "fp16", gl.int32: "i32"}


def describe(block: list[int], dtype: Any = gl.bfloat16) -> str:
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return f"tensordesc<{DTYPE_NAMES[dtype]}{block},{layout!r}>"


def compile_kernel(kernel: Any, signature: dict[str, str], constants: dict[str, Any], **options: int) -> dict[str, int]:
    names = [parameter.name for parameter in kernel.params]
    types = {name: signature.get(name, "*i32" if name.endswith("_ptr") else "i32") for name in names}
    types |= dict.fromkeys(constants, "constexpr")
    aligned = [name for name in names if types[name].startswith("*") or name in ("K", "N", "R", "D", "outputs")]
    source = GluonASTSource(
        fn=kernel,
        signature=types,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(compiled.asm["ptx"])
        file.flush()
        command = [str(ptxas), "-v", "--gpu-name=sm_90a", file.name, "-o", "/dev/null"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill", report))),
        "serialized": len(re.findall(r"wgmma.mma_async instructions are serialized", report)),
        "shared": compiled.metadata.shared,
    }


def gemm(mask: str, num_stages: int, out_buffers: int, dtype: Any = gl.bfloat16) -> dict[str, int]:
    right = [256, 64] if mask == "none" else [64, 256]
    signature = {
        "left_desc": describe([128, 64], dtype),
        "w_desc": describe(right, dtype),
        "s_desc": describe([128, 64], dtype),
        "ready_desc": describe([1, *right], dtype),
        "out_desc": describe([128, 128], dtype),
        "bias_ptr": f"*{DTYPE_NAMES[dtype]}",
        "key_ptr": "*i64",
    }
    constants = {
        "OUTPUTS_LAST": mask != "none", "MASK": mask, "HAS_BIAS": mask == "none", "SEGMENT_WORDS": 8,
        "FACTOR_COLUMNS": 256, "BLOCK_T": 128, "BLOCK_O": 256, "BLOCK_D": 64, "NUM_STAGES": num_stages,
        "OUT_BUFFERS": out_buffers, "MASK_WARPS": 2, "REGISTERS": 80,
    }  # fmt: skip
    return compile_kernel(hopper_gemm._base_gemm_kernel, signature, constants, num_warps=8, maxnreg=168)


def shrink() -> dict[str, int]:
    signature = {
        "x_desc": describe([128, 32], gl.int32),
        "a_desc": describe([1, 64, 64]),
        "parts_ptr": "*fp32",
        "key_ptr": "*i64",
    }
    constants = {
        "HAS_DROPOUT": True, "SEGMENT_WORDS": 8, "TILE_ROWS": 128, "BLOCK_T": 128, "BLOCK_K": 64, "BLOCK_R": 64,
        "NUM_STAGES": 3,
    }  # fmt: skip
    return compile_kernel(hopper_shrink._shrink_parts_kernel, signature, constants, num_warps=4)


def grad_output() -> dict[str, int]:
    signature = {
        "dy_desc": describe([64, 256]),
        "s_desc": describe([64, 64]),
        "b_desc": describe([1, 256, 64]),
        "ds_ptr": "*fp32",
        "db_ptr": "*fp32",
    }
    constants = {
        "NEED_DB": True, "CHUNK_WORDS": 4, "SEGMENT_WORDS": 8, "BLOCK_T": 64, "BLOCK_N": 256, "BLOCK_R": 64,
        "NUM_STAGES": 2,
    }  # fmt: skip
    return compile_kernel(hopper_grad_output._grad_output_kernel, signature, constants, num_warps=4)


def read_input() -> dict[str, int]:
    signature = {
        "x_desc": describe([64, 64], gl.int32),
        "ds_desc": describe([64, 64]),
        "da_ptr": "*fp32",
        "key_ptr": "*i64",
    }
    constants = {
        "HAS_DROPOUT": True, "CHUNK_WORDS": 4, "SEGMENT_WORDS": 8, "BLOCK_T": 64, "BLOCK_K": 128, "BLOCK_R": 64,
        "NUM_STAGES": 3,
    }  # fmt: skip
    return compile_kernel(hopper_input._input_kernel, signature, constants, num_warps=4)


def main() -> None:
    results = {
        "gemm forward": gemm("none", 3, 1),
        "gemm backward": gemm("loaded", 3, 1),
        "gemm backward fp16": gemm("loaded", 4, 1, gl.float16),
        "gemm backward, mask made": gemm("made", 3, 2),
        "shrink": shrink(),
        "grad output": grad_output(),
        "input": read_input(),
    }
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
