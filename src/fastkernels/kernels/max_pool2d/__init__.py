"""The largest value of a window that moves over the rows and columns of a feature map, channels last.

    o[b, y, x, c] = max_uv x[b, s y + u - p, s x + v - p, c]      u, v = 0 .. window - 1, inside the map

B images · Y, X rows and columns · C channels · s stride · p padding: places outside take no part. Exact.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.max_pool2d import reference
from fastkernels.kernels.max_pool2d.shapes import pooled_shape

_max_pool2d = Kernel(
    "max_pool2d",
    "(Tensor x, int window, int stride, int padding) -> Tensor",
    reference.max_pool2d,
    fake=lambda x_BYXC, *window: x_BYXC.new_empty(pooled_shape(x_BYXC, *window)),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
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
