"""A linear layer that is split by its inputs, and the sum of its parts on every rank.

    y = sum_r x[r] W[r]^T

x[r] [T, K] and W[r] [N, K] are rank r's: T tokens, K of the layer's inputs, N outputs. Products accumulate in
at least float32 and are rounded to the dtype of x before they are added up. y has the same bits on all ranks.
The product and the sum may overlap: rows of y do not depend on each other.
Mirrors the product and the sum of vllm.model_executor.layers.linear.RowParallelLinear.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.all_reduce import AllReduce


class GemmAllReduce(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all_reduce = AllReduce()
        self.fuses = Fusion(self, "all_reduce")

    def forward(self, input_: Tensor, weight: Tensor) -> Tensor:
        """[T, K], [N, K] -> [T, N]"""
        if self.fuses and not input_.is_meta:
            return kernels.gemm_all_reduce(input_, weight)
        return self.all_reduce(kernels.linear(input_, weight))
