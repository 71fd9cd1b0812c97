"""RMSNorm with a plausible mistake: it divides by the standard deviation, as a layer norm does.

    y = s / sqrt(var(s) + eps) * weight                instead of mean(s^2)

On activations with a mean near zero the two are close, so the mistake survives a careless comparison with a
wide tolerance. It shows what WRONG looks like in a report.
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
        wide_TD = s_TD.to(torch.promote_types(s_TD.dtype, torch.float32))
        scale_T1 = torch.rsqrt(wide_TD.var(-1, correction=0, keepdim=True) + self.eps)
        y_TD = (wide_TD * scale_T1).to(s_TD.dtype) * self.weight
        return y_TD if residual is None else (y_TD, s_TD)
