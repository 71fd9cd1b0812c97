"""Layer normalisation without weights, scaled and shifted by each request's conditioning.

    y = (x - mean(x)) / sqrt(var(x) + eps) * (1 + scale[b]) + shift[b]        var(x) = mean((x - mean(x))^2)

B requests · L tokens of each · D hidden. All of it in float32 (float64 stays float64), rounded once to the
dtype of x.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.modulated_layer_norm import reference

_modulated_layer_norm = Kernel(
    "modulated_layer_norm",
    "(Tensor x, Tensor scale, Tensor shift, float eps) -> Tensor",
    reference.modulated_layer_norm,
    fake=lambda x_BLD, *_: x_BLD.new_empty(x_BLD.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("inductor", f"{__name__}.inductor"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda x_BLD, *_: x_BLD.shape[0] * x_BLD.shape[1],
    adds_rows=True,
)


def modulated_layer_norm(
    x_BLD: Tensor, scale_BD: Tensor, shift_BD: Tensor, eps: float, *, impl: str | None = None
) -> Tensor:
    """Contiguous [B, L, D] in the dtype of x.

    x, scale and shift have one dtype and may be strided views: scale and shift are often parts of one
    product. Raises KernelError when `impl` cannot serve the call.
    """
    return _modulated_layer_norm(x_BLD, scale_BD, shift_BD, eps, impl=impl)
