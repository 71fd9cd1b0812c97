"""The mean of a window that moves over the rows and columns of a feature map, channels last.

    o[b, y, x, c] = mean_uv x[b, s y + u, s x + v, c]      u, v = 0 .. window - 1, inside the map

B images · Y, X rows and columns · C channels · s stride, at most the window. The map is not padded; a last
window that it does not fill is a mean of fewer places (ceil_mode), or left out. Summed in float32 (float64
stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def pooled_shape(x_BYXC: Tensor, window: int, stride: int, ceil_mode: bool) -> tuple[int, int, int, int]:
    batch, rows, columns, channels = x_BYXC.shape
    extra = stride - 1 if ceil_mode else 0
    height, width = (max(0, side - window + extra) // stride + 1 for side in (rows, columns))
    return batch, height, width, channels


def _reference(x_BYXC: Tensor, window: int, stride: int, ceil_mode: bool) -> Tensor:
    """Sums of shifted maps, of values and of ones."""
    _, height, width, _ = pooled_shape(x_BYXC, window, stride, ceil_mode)
    wide_BYXC = x_BYXC.to(torch.promote_types(x_BYXC.dtype, torch.float32))
    return (
        _sums(wide_BYXC, window, stride, height, width)
        / _sums(torch.ones_like(wide_BYXC[:1, :, :, :1]), window, stride, height, width)
    ).to(x_BYXC.dtype)


def _sums(x_BYXC: Tensor, window: int, stride: int, height: int, width: int) -> Tensor:
    below, right = (
        max(0, stride * (count - 1) + window - side)
        for count, side in zip((height, width), x_BYXC.shape[1:3])
    )
    padded_BYXC = F.pad(x_BYXC, (0, 0, 0, right, 0, below))
    shifted = [
        padded_BYXC[:, u : u + stride * (height - 1) + 1 : stride, v : v + stride * (width - 1) + 1 : stride]
        for u in range(window)
        for v in range(window)
    ]
    return torch.stack(shifted).sum(0)


def _torch(x_BYXC: Tensor, window: int, stride: int, ceil_mode: bool) -> Tensor:
    o_BCYX = F.avg_pool2d(x_BYXC.permute(0, 3, 1, 2), window, stride, ceil_mode=ceil_mode)
    return o_BCYX.permute(0, 2, 3, 1).contiguous()


_avg_pool2d = Kernel(
    "avg_pool2d",
    "(Tensor x, int window, int stride, bool ceil_mode) -> Tensor",
    _reference,
    fake=lambda x_BYXC, *window: x_BYXC.new_empty(pooled_shape(x_BYXC, *window)),
    implementations=(Implementation("torch", _torch, devices=("cpu", "cuda")),),
    rows=lambda x_BYXC, *_: x_BYXC.numel() // x_BYXC.shape[-1],
)


def avg_pool2d(
    x_BYXC: Tensor, window: int, stride: int, ceil_mode: bool = False, *, impl: str | None = None
) -> Tensor:
    """[B, Y', X', C], contiguous, in the dtype of x: Y' = (Y - window) / stride + 1, rounded down, or up.

    Raises KernelError when `impl` cannot serve the call, ValueError for a stride that skips places and for a
    map smaller than one window.
    """
    if stride > window:
        raise ValueError(f"a stride of {stride} skips places: it may be at most the window, {window}")
    if min(x_BYXC.shape[1:3]) < (1 if ceil_mode else window):
        raise ValueError(f"a map of {list(x_BYXC.shape)} has no window of {window} x {window}")
    return _avg_pool2d(x_BYXC, window, stride, ceil_mode, impl=impl)
