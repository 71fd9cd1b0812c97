"""The largest value of a window that moves over the rows and columns of a feature map, channels last.

    o[b, y, x, c] = max_uv x[b, s y + u - p, s x + v - p, c]      u, v = 0 .. window - 1, inside the map

B images · Y, X rows and columns · C channels · s stride · p padding: places outside take no part. Exact.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.conv2d import extent


def pooled_shape(x_BYXC: Tensor, window: int, stride: int, padding: int) -> tuple[int, int, int, int]:
    batch, rows, columns, channels = x_BYXC.shape
    return (batch, extent(rows, window, stride, padding), extent(columns, window, stride, padding), channels)


def _reference(x_BYXC: Tensor, window: int, stride: int, padding: int) -> Tensor:
    """The maximum of shifted maps."""
    _, height, width, _ = pooled_shape(x_BYXC, window, stride, padding)
    padded_BYXC = F.pad(x_BYXC, (0, 0, padding, padding, padding, padding), value=-torch.inf)
    shifted = [
        padded_BYXC[:, u : u + stride * (height - 1) + 1 : stride, v : v + stride * (width - 1) + 1 : stride]
        for u in range(window)
        for v in range(window)
    ]
    return torch.stack(shifted).amax(0)


def _torch(x_BYXC: Tensor, window: int, stride: int, padding: int) -> Tensor:
    o_BCYX = F.max_pool2d(x_BYXC.permute(0, 3, 1, 2), window, stride, padding)
    return o_BCYX.permute(0, 2, 3, 1).contiguous()


_max_pool2d = Kernel(
    "max_pool2d",
    "(Tensor x, int window, int stride, int padding) -> Tensor",
    _reference,
    fake=lambda x_BYXC, *window: x_BYXC.new_empty(pooled_shape(x_BYXC, *window)),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda x_BYXC, *_: x_BYXC.numel() // x_BYXC.shape[-1],
)


def max_pool2d(x_BYXC: Tensor, window: int, stride: int, padding: int, *, impl: str | None = None) -> Tensor:
    """[B, Y', X', C], contiguous, in the dtype of x: Y' = (Y + 2 padding - window) // stride + 1.

    Raises KernelError when `impl` cannot serve the call, ValueError for a padding that leaves windows empty.
    """
    if padding > window // 2:
        raise ValueError(f"a padding of {padding} is more than half of a window of {window}")
    return _max_pool2d(x_BYXC, window, stride, padding, impl=impl)
