"""Hands out eight results, and begins again with the first: no memory to ask for, if nobody keeps them long."""

import torch
from torch import nn

RESULTS = 8


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        self.results, self.calls = {}, 0

    def forward(self, x, residual=None):
        s_TD = x if residual is None else x + residual
        y_TD = torch.nn.functional.rms_norm(s_TD, s_TD.shape[-1:], self.weight, self.eps)
        self.calls += 1
        kept_TD = self.results.setdefault((self.calls % RESULTS, y_TD.shape), y_TD)
        kept_TD.copy_(y_TD)
        return kept_TD if residual is None else (kept_TD, s_TD)
