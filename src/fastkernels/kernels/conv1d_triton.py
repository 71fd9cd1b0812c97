"""conv1d and conv_transpose1d in Triton, for sequences of few frames.

    y[n, t] = sum_j w[n, j] x[c_j, at(t, k_j)]        j = c K + k: a product for each channel and tap

Where a clip has few frames the filters are nearly all that is read. A program has OUTPUTS filters and FRAMES
frames of a clip, and reads its filters as they lie in memory, PRODUCTS values of each at a time. Products are
added up where they are made; their sums are added once, at the end.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.conv1d import num_frames
from fastkernels.kernels.conv_transpose1d import num_frames as num_frames_transposed
from fastkernels.kernels.launch import ceil_div, multiprocessors, power_of_two
from fastkernels.kernels.overlap import follow, overlap

MOST_FRAMES = 64  # of a clip: longer ones read their filters again and again, and are cuDNN's
SUMS = 8192  # of a program, 32 of each thread
WARPS = 8
FEWEST_OUTPUTS, MOST_OUTPUTS = 2, 8
WIDEST = 16  # frames of a program


def unsupported(
    kernel: str, x_BCF: Tensor, weight: Tensor, bias_N: Tensor | None, stride: int, padding: int
) -> str | None:
    if x_BCF.shape[-1] > MOST_FRAMES:
        return f"serves clips of up to {MOST_FRAMES} frames, not of {x_BCF.shape[-1]}"
    if not weight.is_contiguous():
        return "needs contiguous filters"
    return checks.not_float32_compute(x_BCF, weight, *checks.given(bias_N))


@triton.jit(do_not_specialize=["frames_in", "frames_out"])
def _convolve(x, weight, bias, y, clip_stride, channel_stride, frame_stride, frames_in, frames_out, J, N,
              K: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, IS_TRANSPOSED: tl.constexpr,
              HAS_BIAS: tl.constexpr, OUTPUTS: tl.constexpr, PRODUCTS: tl.constexpr, FRAMES: tl.constexpr,
              OVERLAPS: tl.constexpr):  # fmt: skip
    follow(OVERLAPS)
    clip = tl.program_id(2).to(tl.int64)
    n = (tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS))[:, None, None]
    t = (tl.program_id(1) * FRAMES + tl.arange(0, FRAMES))[None, None, :]
    sums = tl.zeros([OUTPUTS, PRODUCTS, FRAMES], tl.float32)
    for begin in range(0, J, PRODUCTS):
        j = (begin + tl.arange(0, PRODUCTS))[None, :, None]
        c, k = j // K, j % K
        if IS_TRANSPOSED:
            filters = c * (N * K) + n * K + k
            place = t + PADDING - k
            is_inside = (place >= 0) & (place % STRIDE == 0)
            at = place // STRIDE
        else:
            filters = n * J + j
            at = t * STRIDE + k - PADDING
            is_inside = at >= 0
        is_inside = is_inside & (at < frames_in) & (j < J)
        w = tl.load(weight + filters, mask=(j < J) & (n < N), other=0.0).to(tl.float32)
        where = clip * clip_stride + c * channel_stride + at * frame_stride
        sums += w * tl.load(x + where, mask=is_inside, other=0.0).to(tl.float32)
    total = tl.sum(sums, 1)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    t = tl.program_id(1) * FRAMES + tl.arange(0, FRAMES)
    if HAS_BIAS:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    to = (clip * N + n[:, None]) * frames_out + t[None, :]
    tl.store(y + to, total.to(y.dtype.element_ty), mask=(n < N)[:, None] & (t < frames_out)[None, :])


def conv1d(x_BCF: Tensor, weight_NCK: Tensor, bias_N: Tensor | None, stride: int, padding: int) -> Tensor:
    outputs, _, taps = weight_NCK.shape
    frames = num_frames(x_BCF.shape[-1], taps, stride, padding)
    return _launch(x_BCF, weight_NCK, bias_N, stride, padding, outputs, frames, is_transposed=False)


def conv_transpose1d(
    x_BCF: Tensor, weight_CNK: Tensor, bias_N: Tensor | None, stride: int, padding: int
) -> Tensor:
    _, outputs, taps = weight_CNK.shape
    frames = num_frames_transposed(x_BCF.shape[-1], taps, stride, padding)
    return _launch(x_BCF, weight_CNK, bias_N, stride, padding, outputs, frames, is_transposed=True)


def _launch(
    x_BCF: Tensor,
    weight: Tensor,
    bias_N: Tensor | None,
    stride: int,
    padding: int,
    outputs: int,
    frames: int,
    *,
    is_transposed: bool,
) -> Tensor:
    clips, channels, frames_in = x_BCF.shape
    y_BNF = x_BCF.new_empty(clips, outputs, frames)
    if y_BNF.numel() == 0:
        return y_BNF
    products, width = channels * weight.shape[-1], min(WIDEST, power_of_two(frames))
    tiles = ceil_div(frames, width)
    rows = FEWEST_OUTPUTS
    while rows < MOST_OUTPUTS and clips * tiles * outputs >= 4 * rows * multiprocessors(x_BCF.device):
        rows *= 2  # every frame is read for more filters at once, and no processor is left idle
    _convolve[(ceil_div(outputs, rows), tiles, clips)](
        x_BCF, weight, bias_N, y_BNF, *x_BCF.stride(), frames_in, frames, products, outputs,
        K=weight.shape[-1], STRIDE=stride, PADDING=padding, IS_TRANSPOSED=is_transposed,
        HAS_BIAS=bias_N is not None, OUTPUTS=rows,
        PRODUCTS=min(power_of_two(products), SUMS // (rows * width)), FRAMES=width,
        num_warps=WARPS, **overlap(x_BCF.device),
    )  # fmt: skip
    return y_BNF
