"""glu by FlashInfer: silu_and_mul, gelu_and_mul, gelu_tanh_and_mul."""

from __future__ import annotations

import flashinfer  # pyright: ignore[reportMissingImports]
from torch import Tensor

from fastkernels.kernels import checks

_FUNCTIONS = {
    "silu": flashinfer.silu_and_mul,
    "gelu": flashinfer.gelu_and_mul,
    "gelu_tanh": flashinfer.gelu_tanh_and_mul,
}


def unsupported(kernel: str, x_T2F: Tensor, activation: str) -> str | None:
    if not x_T2F.is_contiguous():
        return "needs a contiguous tensor"
    # The kernel reads the second half in vectors too, and asserts nothing about it.
    if x_T2F.shape[-1] // 2 * x_T2F.element_size() % checks.VECTOR_BYTES:
        return f"needs halves of a multiple of {checks.VECTOR_BYTES} bytes"
    return checks.not_half(x_T2F) or checks.not_aligned(x_T2F)


def glu(x_T2F: Tensor, activation: str) -> Tensor:
    out_TF = x_T2F.new_empty((*x_T2F.shape[:-1], x_T2F.shape[-1] // 2))
    if out_TF.numel():
        _FUNCTIONS[activation](x_T2F, out_TF)
    return out_TF
