"""Registers an operator of its own."""

import torch
from torch import nn


_library = torch.library.Library("mine", "DEF")


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)
