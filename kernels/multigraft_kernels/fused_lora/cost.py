"""What a kernel must do at least: arithmetic and bytes through device memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """A lower bound for one launch."""

    flops: float  # on the matrix units, with a multiply-add as two
    num_bytes: float  # each input read once, each output written once

    def floor_us(self, teraflops: float, gigabytes_per_second: float) -> float:
        """Give the time that no version can run below, in microseconds."""
        return max(self.flops / teraflops / 1e6, self.num_bytes / gigabytes_per_second / 1e3)
