"""group_norm_film in Triton: a program has a whole group of a sequence in its registers, and reads it once.

B sequences · G groups of S channels · T frames.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.activated import activated
from fastkernels.kernels.launch import power_of_two, warps
from fastkernels.kernels.overlap import follow, overlap

MOST_VALUES = 8192  # of a group


def unsupported(
    kernel: str,
    x_BCT: Tensor,
    weight_C: Tensor,
    bias_C: Tensor,
    scale_BC: Tensor | None,
    shift_BC: Tensor | None,
    residual_BCT: Tensor | None,
    groups: int,
    eps: float,
) -> str | None:
    size, frames = x_BCT.shape[1] // groups, x_BCT.shape[2]
    if power_of_two(size) * power_of_two(frames) > MOST_VALUES:
        return f"serves groups of up to {MOST_VALUES} values, not {size} channels of {frames} frames"
    if not all(each.is_contiguous() for each in (x_BCT, weight_C, bias_C, *checks.given(residual_BCT))):
        return "needs contiguous sequences and parameters"
    if any(each.stride(1) != 1 for each in checks.given(scale_BC, shift_BC)):
        return "needs the scales and shifts of a sequence side by side"
    return checks.not_float32_compute(
        x_BCT, weight_C, bias_C, *checks.given(scale_BC, shift_BC, residual_BCT)
    )


@triton.jit(do_not_specialize=["T"])
def _norm(x, weight, bias, scale, shift, residual, y, scale_stride, shift_stride, eps, T,
          G: tl.constexpr, S: tl.constexpr, IS_CONDITIONED: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
          SIZE: tl.constexpr, FRAMES: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    sequence, group = tl.program_id(1).to(tl.int64), tl.program_id(0)
    member, frame = tl.arange(0, SIZE), tl.arange(0, FRAMES)
    channel, is_member = group * S + member, member < S
    mask = is_member[:, None] & (frame < T)[None, :]
    at = (sequence * G * S + channel)[:, None] * T + frame[None, :]
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    count = (S * T).to(tl.float32)
    centred = tl.where(mask, value - tl.sum(value) / count, 0.0)
    # Correctly rounded: a group has one root, whose error is the error of every value of the group.
    root = tl.sqrt_rn(tl.zeros([1], tl.float32) + tl.sum(centred * centred) / count + eps)
    factor = tl.div_rn(tl.full([1], 1.0, tl.float32), root)
    w = tl.load(weight + channel, mask=is_member, other=0.0).to(tl.float32)
    b = tl.load(bias + channel, mask=is_member, other=0.0).to(tl.float32)
    value = activated(centred * factor[:, None] * w[:, None] + b[:, None], "mish")
    if IS_CONDITIONED:
        s = tl.load(scale + sequence * scale_stride + channel, mask=is_member, other=0.0).to(tl.float32)
        d = tl.load(shift + sequence * shift_stride + channel, mask=is_member, other=0.0).to(tl.float32)
        value = value * s[:, None] + d[:, None]
    if HAS_RESIDUAL:
        value += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)


def group_norm_film(
    x_BCT: Tensor,
    weight_C: Tensor,
    bias_C: Tensor,
    scale_BC: Tensor | None,
    shift_BC: Tensor | None,
    residual_BCT: Tensor | None,
    groups: int,
    eps: float,
) -> Tensor:
    y_BCT = torch.empty_like(x_BCT)
    if y_BCT.numel() == 0:
        return y_BCT
    batch, channels, frames = x_BCT.shape
    size = channels // groups
    strides = [0 if each is None else each.stride(0) for each in (scale_BC, shift_BC)]
    tile = power_of_two(size), power_of_two(frames)
    _norm[(groups, batch)](
        x_BCT, weight_C, bias_C, scale_BC, shift_BC, residual_BCT, y_BCT, *strides, eps, frames,
        G=groups, S=size, IS_CONDITIONED=scale_BC is not None, HAS_RESIDUAL=residual_BCT is not None,
        SIZE=tile[0], FRAMES=tile[1], **warps(tile[0] * tile[1]), **overlap(x_BCT.device),
    )  # fmt: skip
    return y_BCT
