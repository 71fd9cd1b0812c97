"""Sum over the ranks of a group, added to a residual and normalised: what ends a layer that is split.

    s = sum_r x[r] + residual
    y = s / sqrt(mean(s^2) + eps) * weight

x[r] is what rank r brings: [T, D], T tokens, D features of partial sums. The residual and the weight are the
same on all ranks, and both results have the same bits there. The sum over ranks is rounded to the dtype of x,
s to that of the residual, and s / sqrt(...) before the product with the weight; y has the dtype of x.
Mirrors flashinfer.comm.trtllm_allreduce_fusion.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.all_reduce import AllReduce
from ..L1.rms_norm import RMSNorm


class AllReduceNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.all_reduce = AllReduce()
        self.norm = RMSNorm(hidden_size, eps)
        self.fuses = Fusion(self, "all_reduce", "norm")

    def forward(self, allreduce_in: Tensor, residual_in: Tensor) -> tuple[Tensor, Tensor]:
        """[T, D], [T, D] -> (y [T, D], s [T, D])"""
        if self.fuses and not allreduce_in.is_meta:
            return kernels.all_reduce_norm(allreduce_in, residual_in, self.norm.weight, self.norm.eps)
        return self.norm(self.all_reduce(allreduce_in), residual_in)
