"""Time the counter-based dropout beside a plain copy of the same bytes (its floor) on one GPU."""

from __future__ import annotations

import torch
import triton

from multigraft_kernels.counter_dropout import DropoutRows, DropoutTable, add_dropped, drop


def main() -> None:
    """Print microseconds per shape."""
    device = torch.device("cuda")
    for num_tokens, num_features in ((8192, 4096), (8192, 14336)):
        x = torch.randn(num_tokens, num_features, device=device, dtype=torch.bfloat16)
        out = torch.empty_like(x)
        values = torch.zeros(4, num_tokens, dtype=torch.int32)
        values[1] = torch.arange(num_tokens)
        rows = DropoutRows(*values.unbind()).to(device)
        table = DropoutTable.build([123456789], [6554]).to(device)
        times = {
            "copy": lambda: out.copy_(x),  # noqa: B023
            "drop": lambda: drop(x, rows, table),  # noqa: B023
            "add_dropped": lambda: add_dropped(out, x, rows, table),  # noqa: B023
        }
        for name, call in times.items():
            microseconds = 1e3 * triton.testing.do_bench(call, return_mode="median")
            print(f"{num_tokens}x{num_features} {name}: {microseconds:.1f} us")


if __name__ == "__main__":
    main()
