"""Right, and asks the stream something that it may not be asked while a graph is captured."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        torch.cuda.current_stream().query()
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)
