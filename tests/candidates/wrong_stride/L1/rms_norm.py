"""Its elements lie four places apart."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        wide_TD = x.new_empty(len(x), 4 * x.shape[1])[:, ::4]
        return wide_TD.copy_(torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps))
