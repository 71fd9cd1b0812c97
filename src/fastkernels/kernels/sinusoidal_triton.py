"""sinusoidal in Triton: a program for each number."""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.launch import power_of_two, warps
from fastkernels.kernels.sinusoidal import frequencies


def unsupported(kernel: str, v_B: Tensor, *rest: float) -> str | None:
    return checks.not_float32_compute(v_B)


@triton.jit
def _features(value, frequency, out, stride, HALF: tl.constexpr, WIDTH: tl.constexpr):
    b = tl.program_id(0)
    j = tl.arange(0, WIDTH)
    mask = j < HALF
    angle = tl.load(value + b * stride).to(tl.float64) * tl.load(frequency + j, mask=mask, other=0.0)
    row = out + b * 2 * HALF + j
    tl.store(row, tl.cos(angle).to(out.dtype.element_ty), mask=mask)
    tl.store(row + HALF, tl.sin(angle).to(out.dtype.element_ty), mask=mask)


def sinusoidal(v_B: Tensor, dim: int, period: float, highest: float) -> Tensor:
    out_BD = v_B.new_empty((v_B.shape[0], dim))
    if out_BD.numel():
        width = power_of_two(dim // 2)
        table = frequencies(dim, period, highest, v_B.device)
        _features[(v_B.shape[0],)](
            v_B, table, out_BD, v_B.stride(0), HALF=dim // 2, WIDTH=width, **warps(width)
        )
    return out_BD
