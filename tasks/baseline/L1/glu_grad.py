"""The gradient of silu(a) * b by both halves.

    dx = [dy b s (1 + a (1 - s)) | dy a s]                s = 1 / (1 + exp(-a)),  x = [a | b]

T tokens, F features of a half; the gate half a comes first. Computed in at least float32; dx has the dtype of
x.
Mirrors liger_kernel.ops.swiglu.swiglu_backward, whose halves are two tensors.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class SiluAndMulGrad(nn.Module):
    def forward(self, dc: Tensor, x: Tensor) -> Tensor:
        """dc [T, F], x [T, 2F] -> [T, 2F]"""
        return kernels.glu_grad(dc, x)
