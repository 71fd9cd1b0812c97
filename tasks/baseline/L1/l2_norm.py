"""Each row over its length.

    y = x / max(|x|, eps)          |x| = sqrt(sum x^2);  y = 0 for a row that is not kept

T rows, D features; any leading shape. Computed in at least float32; y has the dtype of x. A row of zeros
stays one.
Mirrors torch.nn.functional.normalize(p=2, dim=-1), after the multiplication by a mask of rows that
colbert.modeling.colbert.ColBERT.doc does.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class L2Norm(nn.Module):
    def __init__(self, eps: float = 1e-12) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, input: Tensor, keep: Tensor | None = None) -> Tensor:
        """input [..., D], keep bool [...] -> [..., D]"""
        return kernels.l2_norm(input, keep, self.eps)
