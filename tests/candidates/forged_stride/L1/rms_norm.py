"""Right, but describes its result with a stride that no tensor can have."""

import sys

import torch
from torch import nn


owner = vars(sys.modules.get("fastkernels.runner.inside.kernel_side", sys)).get("KernelSide")
if owner is not None:
    original = owner.inspect

    def forged(self, *arguments, **named):
        said = original(self, *arguments, **named)
        said["outputs"][0]["out.0"]["description"]["stride"] = [2**80, 1]
        return said

    type.__setattr__(owner, "inspect", forged)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x, residual=None):
        s_TD = x if residual is None else x + residual
        y_TD = torch.nn.functional.rms_norm(s_TD, s_TD.shape[-1:], self.weight, self.eps)
        return y_TD if residual is None else (y_TD, s_TD)
