"""Activation of every element.

    gelu(x) = x/2 (1 + erf(x / sqrt 2))      gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))

T tokens · F features. In float32 (float64 stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fastkernels.kernels.activation import reference
from fastkernels.kernels.base import Implementation, Kernel

Name = Literal["gelu", "gelu_tanh"]

_activation = Kernel(
    "activation",
    "(Tensor x, str name) -> Tensor",
    reference.activation,
    fake=lambda x_TF, name: x_TF.new_empty(x_TF.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
        Implementation("inductor", f"{__name__}.inductor"),
    ),
    rows=lambda x_TF, *_: x_TF.numel() // x_TF.shape[-1],
)


def activation(x_TF: Tensor, name: Name, *, impl: str | None = None) -> Tensor:
    """The activation of each element, contiguous, in x's shape and dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError for another activation.
    """
    if name not in reference.ACTIVATIONS:
        raise ValueError(f"Unknown activation '{name}'; there are {', '.join(reference.ACTIVATIONS)}")
    return _activation(x_TF, name, impl=impl)
