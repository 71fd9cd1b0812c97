"""Every call returns the same memory."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        self.buffer = None

    def forward(self, x, residual=None):
        s_TD = x if residual is None else x + residual
        y_TD = torch.nn.functional.rms_norm(s_TD, s_TD.shape[-1:], self.weight, self.eps)
        if self.buffer is None or self.buffer.shape != y_TD.shape:
            self.buffer = torch.empty_like(y_TD)
        y_TD = self.buffer.copy_(y_TD)
        return y_TD if residual is None else (y_TD, s_TD)
