"""Writes far outside of all memory that it has."""

import torch
import triton
import triton.language as tl
from torch import nn


FAR = 1 << 44  # elements


@triton.jit
def _write(y, far):
    tl.store(y + far, 0.0)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        y_TD = torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        _write[(1,)](y_TD, FAR)
        return y_TD
