"""The tokens of all ranks of a group, and a linear layer that is split by its outputs.

    y = (x[0], x[1], ... one below the other) W^T

x[r] [P, K] is rank r's, W [N, K] the own rank's: P tokens of each rank, K inputs, N of the layer's outputs. y
is [R P, N] with R ranks, in the dtype of x. The product accumulates in at least float32. What is here may be
multiplied while the rest is fetched.
Mirrors torch.distributed._symmetric_memory._fused_all_gather_matmul; there
gather_dim is 0, and B a list of one weight, [K, N].
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.all_gather import AllGather


class AllGatherGemm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all_gather = AllGather()
        self.fuses = Fusion(self, "all_gather")

    def forward(self, A_shard: Tensor, B: Tensor) -> Tensor:
        """[P, K], [N, K] -> [R P, N]"""
        if self.fuses and not A_shard.is_meta:
            return kernels.all_gather_gemm(A_shard, B)
        return kernels.linear(self.all_gather(A_shard, 0), B)
