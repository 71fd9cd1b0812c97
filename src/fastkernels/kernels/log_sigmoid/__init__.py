"""Logarithm of the sigmoid, divided by a constant: the log-space gate of linear attention.

    y = log(1 / (1 + exp(-x))) / divisor

Float32 inside (float64 stays float64), rounded once to the dtype of x. Never positive, and accurate where it
is close to zero.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.log_sigmoid import reference

_log_sigmoid = Kernel(
    "log_sigmoid",
    "(Tensor x, float divisor) -> Tensor",
    reference.log_sigmoid,
    fake=lambda x_TD, divisor: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("inductor", f"{__name__}.inductor"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda x_TD, divisor: x_TD.numel() // x_TD.shape[-1],
)


def log_sigmoid(x_TD: Tensor, divisor: float = 1.0, *, impl: str | None = None) -> Tensor:
    """log(sigmoid(x)) / divisor, contiguous, in x's shape and dtype.

    x may be a strided view with a contiguous last dimension. Raises KernelError when `impl` cannot serve the
    call.
    """
    return _log_sigmoid(x_TD, divisor, impl=impl)
