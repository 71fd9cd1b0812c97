"""Root-mean-square normalisation, then a gate.

    y = x / sqrt(mean(x^2) + eps) * weight * silu(gate)        silu(z) = z / (1 + exp(-z))

T rows · D width, usually of a head. Float32 inside (float64 stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.gated_rms_norm import reference

_gated_rms_norm = Kernel(
    "gated_rms_norm",
    "(Tensor x, Tensor gate, Tensor weight, float eps) -> Tensor",
    reference.gated_rms_norm,
    fake=lambda x_TD, gate_TD, weight_D, eps: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("inductor", f"{__name__}.inductor"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)


def gated_rms_norm(
    x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, eps: float, *, impl: str | None = None
) -> Tensor:
    """Normalise the last dimension of `x` and multiply by silu(gate); any number of dimensions before it.

    x and gate have one shape and may be strided views with a contiguous last dimension; the result is
    contiguous, of x's shape and dtype. gate and weight have x's dtype. Raises KernelError when `impl` cannot
    serve the call.
    """
    return _gated_rms_norm(x_TD, gate_TD, weight_D, eps, impl=impl)
