"""Activation of every element, divided by a constant.

    y = act(x) / divisor

    gelu(x) = x/2 (1 + erf(x / sqrt 2))      gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    log_sigmoid(x) = log(1 / (1 + exp(-x)))  silu(x) = x / (1 + exp(-x))
    quick_gelu(x) = x / (1 + exp(-1.702 x))

T tokens · F features. In float32 (float64 stays float64), rounded once to the dtype of x. The log-sigmoid is
never positive, and accurate where it is close to zero; with its divisor it is the log-space gate of linear
attention.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fastkernels.kernels.activation import reference
from fastkernels.kernels.base import Implementation, Kernel

Name = Literal["gelu", "gelu_tanh", "log_sigmoid", "quick_gelu", "silu"]

_activation = Kernel(
    "activation",
    "(Tensor x, str name, float divisor) -> Tensor",
    reference.activation,
    fake=lambda x_TF, name, divisor: x_TF.new_empty(x_TF.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("inductor", f"{__name__}.inductor"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda x_TF, *_: x_TF.numel() // x_TF.shape[-1],
)


def activation(x_TF: Tensor, name: Name, divisor: float = 1.0, *, impl: str | None = None) -> Tensor:
    """The activation of each element over `divisor`, contiguous, in x's shape and dtype.

    x may be a strided view. Raises KernelError when `impl` cannot serve the call, ValueError for another
    activation.
    """
    if name not in reference.ACTIVATIONS:
        raise ValueError(f"Unknown activation '{name}'; there are {', '.join(reference.ACTIVATIONS)}")
    return _activation(x_TF, name, divisor, impl=impl)
