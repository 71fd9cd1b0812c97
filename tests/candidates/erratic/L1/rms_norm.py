"""Right, and waits in every other twentieth of a second: its median is now one kind of call and now the other."""

import time

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        if int(20 * time.monotonic()) % 2:
            time.sleep(2e-3)
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)
