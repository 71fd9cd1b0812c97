"""Its C source does not compile."""

import subprocess

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        source = b"int norm(float *x) { return x +; }"
        subprocess.run(["cc", "-x", "c", "-shared", "-o", "norm.so", "-"], input=source, check=True)

    def forward(self, x, residual=None):
        return x
