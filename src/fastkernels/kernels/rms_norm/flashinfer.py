"""rms_norm by FlashInfer. It multiplies by the weight in float32 and rounds once.

Its fused_add_rmsnorm is not offered as add_rms_norm: it normalises the sum before rounding it and writes over
both arguments, so keeping the contract would take two copies and still give other values.
"""

from __future__ import annotations

import flashinfer  # pyright: ignore[reportMissingImports]
from torch import Tensor

from fastkernels.kernels import checks


def unsupported(kernel: str, x_TD: Tensor, *rest: Tensor | float) -> str | None:
    if kernel == "add_rms_norm":
        return "normalises the unrounded sum and writes over its arguments"
    weight_D = rest[0]
    assert isinstance(weight_D, Tensor)
    if x_TD.ndim not in (2, 3):
        return f"serves 2 or 3 dimensions, not {x_TD.ndim}"
    return checks.not_half(x_TD, weight_D) or checks.not_aligned(x_TD, weight_D)


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    out_TD = x_TD.new_empty(x_TD.shape)
    if out_TD.numel():
        flashinfer.rmsnorm(x_TD, weight_D, eps, out=out_TD)
    return out_TD
