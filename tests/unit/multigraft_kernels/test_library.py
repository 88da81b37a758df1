"""The kernels as a library: the example of docs/kernels.md, run as it stands there."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import torch

import multigraft_kernels
from multigraft_kernels.multi_lora.reference import multi_lora_reference

ROOT = Path(__file__).parents[3]


def test_the_example_gives_the_output_and_the_gradients_of_the_reference(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    torch.manual_seed(0)
    got = runpy.run_path(str(script))
    x, a, b = (got[name].detach().clone().requires_grad_(True) for name in ("x", "a", "b"))
    want = multi_lora_reference(x, got["weight"], None, a, b, got["segments"], (got["rows"], got["table"]))
    want.square().mean().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(got["y"], want)
    torch.testing.assert_close(got["x"].grad, x.grad)
    for segment, sink in zip(got["segments"], got["sinks"], strict=True):
        assert a.grad is not None
        assert b.grad is not None
        torch.testing.assert_close(sink.a, a.grad[segment.slot, : segment.rank])
        torch.testing.assert_close(sink.b, b.grad[segment.slot, :, : segment.rank])


def test_the_library_loads_nothing_else_of_multigraft_and_no_triton() -> None:
    code = "import sys, multigraft_kernels; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    tops = {name.partition(".")[0] for name in loaded}
    assert tops & {"multigraft", "multigraft_trainer", "multigraft_operator", "transformers", "triton"} == set()


def test_every_name_of_the_library_says_what_it_is() -> None:
    assert [name for name in multigraft_kernels.__all__ if not getattr(multigraft_kernels, name).__doc__] == []
