"""Layer normalisation.

    y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias        var(x) = mean((x - mean(x))^2)

T tokens · D hidden. All of it in float32 (float64 stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.layer_norm import reference

_layer_norm = Kernel(
    "layer_norm",
    "(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
    reference.layer_norm,
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
        Implementation("inductor", f"{__name__}.inductor"),
    ),
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
