"""Gated linear units: the activation of one half of the features times the other half.

    y = act(x[..., :F]) * x[..., F:]        act = silu(z) = z / (1 + exp(-z)),  or gelu(z) = z Phi(z),
                                            or relu2(z) = max(z, 0)^2

T tokens, F features; the gate half comes first. The activation is computed in at least float32; y has the
dtype of x. `approximate="tanh"` replaces Phi(z) by (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))) / 2.
SwigluOAIAndMul takes its halves from neighbouring features and clamps them, the gate g from above alone:

    y[..., f] = (u + 1) g sigmoid(alpha g)
    g = min(x[..., 2f], limit),  u = clip(x[..., 2f + 1], -limit, limit)

Mirrors vllm.model_executor.layers.activation.SiluAndMul, GeluAndMul and SwigluOAIAndMul; ReluSquaredAndMul is
what transformers.models.bitnet.modeling_bitnet.BitNetMLP computes between its projections and its norm.
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


class SwigluOAIAndMul(nn.Module):
    def __init__(self, alpha: float = 1.702, limit: float = 7.0) -> None:
        super().__init__()
        self.alpha, self.limit = alpha, limit

    def forward(self, x: Tensor) -> Tensor:
        """[..., 2F] -> [..., F]"""
        return kernels.clamped_glu(x, self.alpha, self.limit)
