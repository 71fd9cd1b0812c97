"""Sinusoidal features of a number.

    y[k] = cos(v f[k]),  y[k + D/2] = sin(v f[k])        f[k] = period^(-2k/D),  k < D/2

B numbers · D features, even. Angles are float64: of a guidance of 3,500 float32 would lose half a thousandth
of the phase. Rounded once to the dtype of v.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.sinusoidal import reference

_sinusoidal = Kernel(
    "sinusoidal",
    "(Tensor value, int dim, float period) -> Tensor",
    reference.sinusoidal,
    fake=lambda v_B, dim, period: v_B.new_empty((v_B.shape[0], dim)),
    implementations=(Implementation("triton", f"{__name__}.triton"),),
    rows=lambda v_B, *_: v_B.shape[0],
)


def sinusoidal(v_B: Tensor, dim: int, period: float, *, impl: str | None = None) -> Tensor:
    """[B, D], contiguous, in the dtype of v, which is float32 or float64: of a large number 16 bits would
    lose the phase. ValueError otherwise; KernelError when `impl` cannot serve the call."""
    if v_B.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"sinusoidal takes float32 or float64, not {v_B.dtype}")
    return _sinusoidal(v_B, dim, period, impl=impl)
