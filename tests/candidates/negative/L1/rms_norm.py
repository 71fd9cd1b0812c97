"""Minus the right result: its memory is right, and a bit that says to negate it lies over that."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        s_TD = x if residual is None else x + residual
        y_TD = torch.nn.functional.rms_norm(s_TD, s_TD.shape[-1:], self.weight, self.eps)
        return torch._neg_view(y_TD) if residual is None else (torch._neg_view(y_TD), s_TD)
