"""Softmax over the last dimension.

    y[t, d] = exp(x[t, d] - max_d x[t]) / sum_d exp(x[t, d] - max_d x[t])

T rows · D width. Float32 inside (float64 stays float64), rounded once to the dtype of x. -inf gives 0; a row
of nothing but -inf gives NaN, as does a row with NaN or +inf.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.softmax import reference

_softmax = Kernel(
    "softmax",
    "(Tensor x) -> Tensor",
    reference.softmax,
    fake=lambda x_TD: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
        Implementation("inductor", f"{__name__}.inductor"),
    ),
    rows=lambda x_TD: x_TD.numel() // x_TD.shape[-1],
)


def softmax(x_TD: Tensor, *, impl: str | None = None) -> Tensor:
    """Softmax of the last dimension, contiguous, in x's shape and dtype; any number of dimensions before it.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _softmax(x_TD, impl=impl)
