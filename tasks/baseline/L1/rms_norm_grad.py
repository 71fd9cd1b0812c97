"""The gradient of a root-mean-square norm by its input.

    n = x / sqrt(mean(x^2) + eps)
    dx = (w dy - n mean(w dy n)) / sqrt(mean(x^2) + eps)
    dx = ... + residual                                   what the norm's input was also used for

T tokens, D hidden. Computed in at least float32; dx has the dtype of dy. The weight w is not learnt: it has
no gradient.
Mirrors liger_kernel.ops.rms_norm.rms_norm_backward, which has no residual and also learns w.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class RMSNormGrad(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, dY: Tensor, X: Tensor, W: Tensor, residual: Tensor | None = None) -> Tensor:
        """dY, X and residual [..., D], W [D] -> [..., D]"""
        return kernels.rms_norm_grad(dY, X, W, self.eps, residual)
