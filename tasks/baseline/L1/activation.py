"""Activation of every element.

    y = gelu(x) = x Phi(x)

T tokens, F features; any shape. Computed in at least float32; y has the dtype of x. `approximate="tanh"`
replaces Phi(x) by (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2.
Mirrors torch.nn.GELU.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from fastkernels import kernels


class GELU(nn.Module):
    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate must be 'none' or 'tanh', not {approximate!r}")
        self.name: Literal["gelu", "gelu_tanh"] = "gelu_tanh" if approximate == "tanh" else "gelu"

    def forward(self, x: Tensor) -> Tensor:
        """[..., F] -> [..., F]"""
        return kernels.activation(x, self.name)
