"""Counter-based dropout: which features are kept depends on (seed, layer, step, draw, position, feature) alone."""

from multigraft_kernels.counter_dropout.apply import add_dropped, drop, drop_and_add
from multigraft_kernels.counter_dropout.rows import DropoutRows, DropoutTable, build_threshold

__all__ = ["DropoutRows", "DropoutTable", "add_dropped", "build_threshold", "drop", "drop_and_add"]
