"""A bias for each channel and an activation: what follows a convolution whose norm is folded into it.

    y[t, c] = act(x[t, c] + bias[c])          silu(x) = x / (1 + exp(-x))          none(x) = x

T tokens or pixels · C channels. In float32 (float64 stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.bias_activation import reference

Name = Literal["silu", "none"]

_bias_activation = Kernel(
    "bias_activation",
    "(Tensor x, Tensor bias, str name) -> Tensor",
    reference.bias_activation,
    fake=lambda x_TC, bias_C, name: x_TC.new_empty(x_TC.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("inductor", f"{__name__}.inductor"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda x_TC, *_: x_TC.numel() // x_TC.shape[-1],
)


def bias_activation(x_TC: Tensor, bias_C: Tensor, name: Name, *, impl: str | None = None) -> Tensor:
    """The activation of x + bias, contiguous, in x's shape and dtype; x may be a strided view.

    Raises KernelError when `impl` cannot serve the call, ValueError for another activation.
    """
    if name not in reference.ACTIVATIONS:
        raise ValueError(f"Unknown activation '{name}'; there are {', '.join(reference.ACTIVATIONS)}")
    return _bias_activation(x_TC, bias_C, name, impl=impl)
