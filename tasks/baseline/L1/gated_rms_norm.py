"""Root-mean-square normalisation times a gate: of a head, or of a group of channels behind its gate.

    y = x / sqrt(mean(x^2) + eps) * weight * silu(gate)        silu(z) = z / (1 + exp(-z));  or sigmoid(gate)
    grouped: y = g / sqrt(mean(g^2) + eps) * weight            g = x silu(gate), mean over a group's channels

T tokens, H heads, V width of a head; one weight [V] for all heads, any leading shape. grouped: I channels in
full_n_groups groups of neighbours, one weight [I]. Computed in at least float32, y has the dtype of x.
Mirrors fla.modules.FusedRMSNormGated (activation swish or sigmoid) and, as grouped,
vllm.model_executor.layers.mamba.mamba_mixer2.Mixer2RMSNormGated.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fastkernels import kernels


class RMSNormGated(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6, activation: str = "swish") -> None:
        super().__init__()
        if activation not in ("swish", "sigmoid"):
            raise ValueError(f"activation must be 'swish' or 'sigmoid', not {activation!r}")
        self.eps = eps
        self.activation: Literal["silu", "sigmoid"] = "silu" if activation == "swish" else "sigmoid"
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x: Tensor, g: Tensor) -> Tensor:
        """x and g, the gate, [T, H, V] (its rows may be strided) -> [T, H, V]"""
        return kernels.gated_rms_norm(x, g, self.weight, self.eps, False, self.activation)


class Mixer2RMSNormGated(nn.Module):
    def __init__(self, full_hidden_size: int, full_n_groups: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.groups = (full_n_groups, full_hidden_size // full_n_groups)
        self.weight = nn.Parameter(torch.empty(full_hidden_size), requires_grad=False)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x and gate [T, I] (rows may be strided) -> [T, I]"""
        x_TGD, gate_TGD = (t.unflatten(-1, self.groups) for t in (x, gate))
        y_TGD = kernels.gated_rms_norm(x_TGD, gate_TGD, self.weight.view(self.groups), self.eps, True)
        return y_TGD.flatten(-2)
