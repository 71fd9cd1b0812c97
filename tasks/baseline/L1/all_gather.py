"""What every rank of a group brings, side by side, on every rank.

    y = x[0], x[1], ... one behind the other along dim

x[r] is what rank r brings: [T, D], T tokens, D features. By tokens (dim 0) or by features (dim -1). y has the
dtype of x and its values.
Mirrors vllm.distributed.communication_op.tensor_model_parallel_all_gather.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class AllGather(nn.Module):
    def forward(self, input_: Tensor, dim: int = -1) -> Tensor:
        """[T, D] -> [ranks T, D] or [T, ranks D]"""
        return kernels.all_gather(input_, dim)
