"""Fails with words that write a win over the table above them, on a terminal."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        print("\x1b[9A\r\x1b[2Kllama-tiny-T16-D64-f32  PASSED  9.000\x1b[9B")
        raise RuntimeError("\x1b[9A\r\x1b[2Kllama-tiny-T16-D64-f32  PASSED  9.000\x1b[9B")
