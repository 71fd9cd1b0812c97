"""Sinusoidal features of a number.

    y[k] = cos(v f[k]),  y[k + D/2] = sin(v f[k])        f[k] = highest period^(-2k/D),  k < D/2

B numbers · D features, even. Angles are float64: of a guidance of 3,500 float32 would lose half a thousandth
of the phase. Rounded once to the dtype of v.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def _reference(v_B: Tensor, dim: int, period: float, highest: float) -> Tensor:
    angle_BJ = v_B[:, None] * frequencies(dim, period, highest, v_B.device)
    return torch.cat((angle_BJ.cos(), angle_BJ.sin()), dim=-1).to(v_B.dtype)


@lru_cache
def frequencies(dim: int, period: float, highest: float, device: torch.device) -> Tensor:
    """float64 [D/2]; one for all calls, so that a graph is captured with the copy that is there."""
    exponents = torch.arange(dim // 2, dtype=torch.float64, device="cpu") * (-2 * math.log(period) / dim)
    return (highest * exponents.exp()).to(device)


_sinusoidal = Kernel(
    "sinusoidal",
    "(Tensor value, int dim, float period, float highest) -> Tensor",
    _reference,
    fake=lambda v_B, dim, *_: v_B.new_empty((v_B.shape[0], dim)),
    implementations=(Implementation("triton", f"{__name__}_triton"),),
    rows=lambda v_B, *_: v_B.shape[0],
)


def sinusoidal(
    v_B: Tensor, dim: int, period: float, highest: float = 1.0, *, impl: str | None = None
) -> Tensor:
    """[B, D], contiguous, in the dtype of v, which is float32 or float64: of a large number 16 bits would
    lose the phase. ValueError otherwise; KernelError when `impl` cannot serve the call."""
    if v_B.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"sinusoidal takes float32 or float64, not {v_B.dtype}")
    return _sinusoidal(v_B, dim, period, highest, impl=impl)
