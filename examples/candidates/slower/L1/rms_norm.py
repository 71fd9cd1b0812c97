"""RMSNorm computed in float64: right, and slower than the baseline.

    s = x + residual                                   (only with a residual)
    y = s / sqrt(mean(s^2) + eps) * weight

T tokens, D hidden; any leading shape. It shows what a correct candidate that does not pay looks like.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """y, or (y, s) with a residual."""
        s_TD = x if residual is None else x + residual
        wide_TD = s_TD.double()
        scale_T1 = torch.rsqrt(wide_TD.square().mean(-1, keepdim=True) + self.eps)
        y_TD = (wide_TD * scale_T1).to(s_TD.dtype) * self.weight
        return y_TD if residual is None else (y_TD, s_TD)
