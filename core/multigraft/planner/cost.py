"""How long a pipeline stage works on a microbatch: a linear model.

    step_ms(m) = fixed_ms + token_ms * tokens(m) + pair_ms * sum over samples of tokens^2

Forward and backward have a model each; a stage has a share of the whole model's time. Tokens are counted with their
padding to tiles, as the kernels run them; attention is block-diagonal, hence the square of each sample's own length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from multigraft.planner.plan import Microbatch


@dataclass(frozen=True)
class CostModel:
    """Times of the whole model (all stages) on one microbatch, in milliseconds.

    The defaults are one H200 with an 8B Llama in bf16. GEMM-only forward and input gradient of all linears and the head
    run at 22,471 tokens/s with 4,096 tokens a microbatch and at 24,328 with 8,192 (docs/experiment-log.md): 182.3 and
    336.7 ms, so 27.8 ms fixed and 0.0377 ms a token for both passes, halved here. Causal attention of 32 layers of
    width 4,096 takes 2 * 4096 * 32 FLOP per squared token forward, 2.5 times that backward, at an assumed 400 TFLOP/s.
    """

    forward_fixed_ms: float = 13.9
    forward_token_ms: float = 0.01885
    forward_pair_ms: float = 6.6e-7
    backward_fixed_ms: float = 13.9
    backward_token_ms: float = 0.01885
    backward_pair_ms: float = 1.64e-6
    no_op_ms: float = 0.05  # a no-op only passes a signal to the next stage
    stage_shares: tuple[float, ...] = field(default=())  # share of each stage; () means equal shares

    def shares(self, num_stages: int) -> tuple[float, ...]:
        """Give each stage's share of the model's time.

        Raises:
            ValueError: If shares are given for another number of stages.
        """
        if not self.stage_shares:
            return (1 / num_stages,) * num_stages
        if len(self.stage_shares) != num_stages:
            raise ValueError(f"stage_shares: got {len(self.stage_shares)} shares, allowed {num_stages} (num_stages)")
        return self.stage_shares

    def estimate_ms(self, microbatches: Sequence[Microbatch], tile_tokens: int) -> NDArray[np.float64]:
        """Estimate forward and backward of the whole model on each microbatch, [2, len(microbatches)]."""
        tokens = np.array([microbatch.padded_tokens(tile_tokens) for microbatch in microbatches], dtype=np.float64)
        pairs = np.array([_sum_squares(microbatch) for microbatch in microbatches], dtype=np.float64)
        forward = self.forward_fixed_ms + self.forward_token_ms * tokens + self.forward_pair_ms * pairs
        backward = self.backward_fixed_ms + self.backward_token_ms * tokens + self.backward_pair_ms * pairs
        return np.where(tokens > 0, np.stack([forward, backward]), self.no_op_ms)


def _sum_squares(microbatch: Microbatch) -> int:
    return sum(sample.num_tokens**2 for segment in microbatch.segments for sample in segment.samples)
