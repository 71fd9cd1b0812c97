"""Activation of every element.

    gelu           y = x Phi(x);  approximate="tanh": Phi(x) as (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2
    log_sigmoid    y = log(1 / (1 + exp(-x))) / divisor
    mish           y = x tanh(log(1 + exp(x)))
    quick_gelu     y = x / (1 + exp(-1.702 x))
    relu           y = max(x, 0)
    relu2          y = max(x, 0)^2
    sigmoid        y = 1 / (1 + exp(-x))
    silu           y = x / (1 + exp(-x))
    tanh           y = 2 / (1 + exp(-2 x)) - 1

T tokens, F features; any shape. Computed in at least float32; y has the dtype of x. The divisor of a
log-space gate is the length of its memory: the smaller the quotient, the slower it forgets.
Mirrors torch.nn.GELU, torch.nn.LogSigmoid, torch.nn.Mish, torch.nn.ReLU, torch.nn.Sigmoid, torch.nn.SiLU,
torch.nn.Tanh, vllm.model_executor.layers.activation.QuickGELU,
vllm.model_executor.layers.activation.ReLUSquaredActivation.
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

    def forward(self, input: Tensor) -> Tensor:
        """[..., F] -> [..., F]"""
        return kernels.activation(input, self.name)


class LogSigmoid(nn.Module):
    def __init__(self, divisor: float = 1.0) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, input: Tensor) -> Tensor:
        """[..., F] -> [..., F]"""
        return kernels.activation(input, "log_sigmoid", self.divisor)


class Mish(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        """[..., F] -> [..., F]"""
        return kernels.activation(input, "mish")


class QuickGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """[..., F] -> [..., F]"""
        return kernels.activation(x, "quick_gelu")


class ReLU(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        """[..., F] -> [..., F]"""
        return kernels.activation(input, "relu")


class ReLUSquaredActivation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """[..., F] -> [..., F]"""
        return kernels.activation(x, "relu2")


class Sigmoid(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        """[..., F] -> [..., F]"""
        return kernels.activation(input, "sigmoid")


class SiLU(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        """[..., F] -> [..., F]"""
        return kernels.activation(input, "silu")


class Tanh(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        """[..., F] -> [..., F]"""
        return kernels.activation(input, "tanh")
