"""Group normalisation and what follows it: of feature maps, channels last, the activation; of sequences,
channels first, Mish and what a conditioned residual block does.

    n = (x - mean_g) / sqrt(mean_g((x - mean_g)^2) + eps) * weight[c] + bias[c]
    y = act(n)                                                     act: silu(n) = n / (1 + exp(-n)), or none
    y = mish(n) * scale[b, c] + shift[b, c] + residual[b, c, t]    film: mish(n) = n tanh(log(1 + exp(n)))

B images, Y, X rows and columns, C channels, of which num_groups groups of neighbours are normalised, each
over its channels and all pixels of its image: mean_g is over those of the group of c. film: B sequences of T
frames; scale and shift, and the residual, may be absent. Computed in at least float32 and rounded once to the
dtype of x.
Mirrors torch.nn.GroupNorm (with activation="silu": followed by torch.nn.SiLU; film: followed by torch.nn.Mish
and a feature-wise linear modulation).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fastkernels import kernels


class GroupNorm(nn.Module):
    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, activation: str = "none"
    ) -> None:
        super().__init__()
        if activation not in ("silu", "none"):
            raise ValueError(f"activation must be 'silu' or 'none', not {activation!r}")
        self.num_groups, self.eps = num_groups, eps
        self.activation: Literal["silu", "none"] = "silu" if activation == "silu" else "none"
        self.weight = nn.Parameter(torch.empty(num_channels), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(num_channels), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y, X, C]"""
        return kernels.group_norm(input, self.weight, self.bias, self.num_groups, self.eps, self.activation)


class GroupNormFilm(nn.Module):
    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_groups, self.eps = num_groups, eps
        self.weight = nn.Parameter(torch.empty(num_channels), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(num_channels), requires_grad=False)

    def forward(
        self,
        input: Tensor,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """x and residual [B, C, T], scale and shift [B, C] -> [B, C, T]"""
        norm = (self.weight, self.bias)
        return kernels.group_norm_film(input, *norm, scale, shift, residual, self.num_groups, self.eps)
