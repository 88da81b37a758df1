"""Apply the dropout where the data lies: numpy on a CPU, one Triton kernel on a GPU; the same bits on both."""

from __future__ import annotations

import torch

from multigraft_kernels.counter_dropout.cpu import add_dropped_rows, drop_and_add_rows, drop_rows
from multigraft_kernels.counter_dropout.rows import DropoutRows, DropoutTable


def drop(x: torch.Tensor, rows: DropoutRows, table: DropoutTable) -> torch.Tensor:
    """Give dropout(x), [T, K]. Rows without adapter, or whose adapter is not targeted here, are left unwritten.

    A dropped feature is exactly 0, also where x is not finite. Not differentiable: its gradient is `add_dropped`.
    """
    _check_shapes(x, rows)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.is_cuda:
        from multigraft_kernels.counter_dropout.gpu import launch

        launch(x, rows, table, out, add=False)
    else:
        drop_rows(x, rows, table, out)
    return out


def add_dropped(out: torch.Tensor, grad: torch.Tensor, rows: DropoutRows, table: DropoutTable) -> None:
    """Add dropout(grad) to `out`, both [T, K]: the gradient of `drop`. Rows left alone by `drop` are left alone."""
    _check_shapes(grad, rows)
    if out.is_cuda:
        from multigraft_kernels.counter_dropout.gpu import launch

        launch(grad, rows, table, out, add=True)
    else:
        add_dropped_rows(out, grad, rows, table)


def drop_and_add(
    x: torch.Tensor, grad: torch.Tensor, out: torch.Tensor, rows: DropoutRows, table: DropoutTable
) -> torch.Tensor:
    """Give `drop(x)` and do `add_dropped(out, grad)`; on a CPU the mask, which is most of the cost, is made once."""
    if x.is_cuda:
        add_dropped(out, grad, rows, table)
        return drop(x, rows, table)
    _check_shapes(x, rows)
    _check_shapes(grad, rows)
    dropped = torch.empty(x.shape, dtype=x.dtype)
    drop_and_add_rows(x, grad, rows, table, dropped, out)
    return dropped


def _check_shapes(x: torch.Tensor, rows: DropoutRows) -> None:
    if x.dim() != 2 or x.shape[0] != len(rows.adapter):
        raise ValueError(f"dropout: x has shape {tuple(x.shape)}, want [{len(rows.adapter)}, features]")
    if x.shape[1] > 1 and x.stride(1) != 1:
        raise ValueError(f"dropout: x has strides {x.stride()}; the features of a token must be contiguous")
