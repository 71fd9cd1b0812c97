"""A decorator hides from a reader that forward takes other arguments."""

import torch
from torch import nn


def renamed(method):
    def forward(self, scale):
        return method(self, scale)

    return forward


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    @renamed
    def forward(self, x, residual=None):
        return x
