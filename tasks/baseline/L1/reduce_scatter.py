"""Sum over the ranks of a group, of which each rank gets its part.

    y = sum_r x[r][rank]       x[r][0], x[r][1], ... are equal parts of x[r] along dim

x[r] is what rank r brings: [T, D], T tokens, D features of partial sums. By tokens (dim 0) or by features
(dim -1), whose number the ranks divide. y has the dtype of x; sums of 16-bit values may be rounded at every
step.
Mirrors vllm.distributed.communication_op.tensor_model_parallel_reduce_scatter.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class ReduceScatter(nn.Module):
    def forward(self, input_: Tensor, dim: int = -1) -> Tensor:
        """[T, D] -> [T / ranks, D] or [T, D / ranks]"""
        return kernels.reduce_scatter(input_, dim)
