"""Gated linear units: the activation of one half of the features times the other half.

    y = act(x[..., :F]) * x[..., F:]        act = silu(z) = z / (1 + exp(-z)),  or gelu(z) = z Phi(z),
                                            or relu2(z) = max(z, 0)^2

T tokens, F features; the gate half comes first. The activation is computed in at least float32; y has the
dtype of x. `approximate="tanh"` replaces Phi(z) by (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))) / 2.
Mirrors vllm.model_executor.layers.activation.SiluAndMul and GeluAndMul; ReluSquaredAndMul is what
transformers.models.bitnet.modeling_bitnet.BitNetMLP computes between its projections and its norm.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from fastkernels import kernels


class SiluAndMul(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """[..., 2F] -> [..., F]"""
        return kernels.glu(x, "silu")


class GeluAndMul(nn.Module):
    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate must be 'none' or 'tanh', not {approximate!r}")
        self.activation: Literal["gelu", "gelu_tanh"] = "gelu_tanh" if approximate == "tanh" else "gelu"

    def forward(self, x: Tensor) -> Tensor:
        """[..., 2F] -> [..., F]"""
        return kernels.glu(x, self.activation)


class ReluSquaredAndMul(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """[..., 2F] -> [..., F]"""
        return kernels.glu(x, "relu2")
