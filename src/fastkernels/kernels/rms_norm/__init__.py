"""Root-mean-square normalisation, alone or after a residual add.

    s = x + residual                                      (add_rms_norm; rounded to the dtype of x)
    y = s / sqrt(mean(s^2) + eps) * weight

T tokens · D hidden. Mean, root and quotient in float32 (float64 stays float64); cast to the dtype of x
*before* the product with the weight. `add_rms_norm` normalises the rounded sum, as vLLM's CUDA kernel does
(its compiled path normalises the unrounded one): the sum it returns is the sum it normalised.
Implementations that keep the product with the weight in float32 round once less; nothing else may differ.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.rms_norm import reference

_IMPLEMENTATIONS = (
    Implementation("triton", f"{__name__}.triton"),
    Implementation("flashinfer", f"{__name__}.flashinfer", requires=("flashinfer",), extra="gpu"),
    Implementation("inductor", f"{__name__}.inductor"),
    Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
)

_rms_norm = Kernel(
    "rms_norm",
    "(Tensor x, Tensor weight, float eps) -> Tensor",
    reference.rms_norm,
    fake=lambda x_TD, weight_D, eps: x_TD.new_empty(x_TD.shape),
    implementations=_IMPLEMENTATIONS,
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)

_add_rms_norm = Kernel(
    "add_rms_norm",
    "(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    reference.add_rms_norm,
    fake=lambda x_TD, residual_TD, weight_D, eps: (x_TD.new_empty(x_TD.shape), x_TD.new_empty(x_TD.shape)),
    implementations=_IMPLEMENTATIONS,
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float, *, impl: str | None = None) -> Tensor:
    """Normalise the last dimension of `x`, any number of dimensions before it.

    x may be a strided view (heads of a packed projection) with a contiguous last dimension and its other
    dimensions in memory order; the result is contiguous, of x's shape and dtype. weight has x's dtype.
    Raises KernelError when `impl` cannot serve the call.
    """
    return _rms_norm(x_TD, weight_D, eps, impl=impl)


def add_rms_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float, *, impl: str | None = None
) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual), both new tensors: neither argument is written.

    x, residual and weight share one dtype, x and residual one shape.
    Raises KernelError when `impl` cannot serve the call.
    """
    return _add_rms_norm(x_TD, residual_TD, weight_D, eps, impl=impl)
