"""Layer normalisation, alone or after a residual add.

    s = x + residual                                              (add_layer_norm; rounded to the dtype of x)
    y = (s - mean(s)) / sqrt(var(s) + eps) * weight + bias        var(s) = mean((s - mean(s))^2)

T tokens · D hidden. All of it in float32 (float64 stays float64), rounded once to the dtype of x.
`add_layer_norm` returns the sum that it normalises.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.layer_norm import reference

_IMPLEMENTATIONS = (
    Implementation("triton", f"{__name__}.triton"),
    Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    Implementation("inductor", f"{__name__}.inductor"),
)

_layer_norm = Kernel(
    "layer_norm",
    "(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
    reference.layer_norm,
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=_IMPLEMENTATIONS,
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)

_add_layer_norm = Kernel(
    "add_layer_norm",
    "(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor)",
    reference.add_layer_norm,
    fake=lambda x_TD, *_: (x_TD.new_empty(x_TD.shape), x_TD.new_empty(x_TD.shape)),
    implementations=_IMPLEMENTATIONS,
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)


def layer_norm(
    x_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float, *, impl: str | None = None
) -> Tensor:
    """Normalise over the last dimension, contiguous, in x's shape and dtype; any number of dimensions before.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _layer_norm(x_TD, weight_D, bias_D, eps, impl=impl)


def add_layer_norm(
    x_TD: Tensor,
    residual_TD: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(layer_norm(x + residual), x + residual), both new and contiguous. x and residual share shape, dtype.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _add_layer_norm(x_TD, residual_TD, weight_D, bias_D, eps, impl=impl)
