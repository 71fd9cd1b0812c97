"""A linear layer that is split by its inputs, and the sum of its parts, of which each rank gets its tokens.

    y = rows [rank T/R, (rank + 1) T/R) of sum_r x[r] W[r]^T

x[r] [T, K] and W[r] [N, K] are rank r's: T tokens, which the R ranks divide, K of the layer's inputs, N
outputs. Products accumulate in at least float32 and are rounded to the dtype of x before they are added up.
The product and the sum may overlap.
Mirrors torch.distributed._symmetric_memory._fused_matmul_reduce_scatter;
there scatter_dim is 0, and B is [K, N].
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.reduce_scatter import ReduceScatter


class GemmReduceScatter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reduce_scatter = ReduceScatter()
        self.fuses = Fusion(self, "reduce_scatter")

    def forward(self, A: Tensor, B: Tensor) -> Tensor:
        """[T, K], [N, K] -> [T / R, N]"""
        if self.fuses and not A.is_meta:
            return kernels.gemm_reduce_scatter(A, B)
        return self.reduce_scatter(kernels.linear(A, B), 0)
