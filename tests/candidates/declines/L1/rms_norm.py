"""Says that it cannot serve the case, as an implementation by name may."""

import torch
from fastkernels.errors import KernelError
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)
        raise KernelError("rms_norm: this case is not for me")

    def forward(self, x, residual=None):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)
