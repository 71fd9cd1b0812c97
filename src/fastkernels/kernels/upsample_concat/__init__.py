"""A feature map at twice its rows and columns, with the channels of another one behind its own.

    o[b, y, x] = concat(x[b, y // 2, x // 2], skip[b, y, x])

B images · Y, X rows and columns of x · C channels of x · D of skip. Nearest neighbours: exact.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.upsample_concat import reference

_upsample_concat = Kernel(
    "upsample_concat",
    "(Tensor x, Tensor skip) -> Tensor",
    reference.upsample_concat,
    fake=lambda x_BYXC, skip: x_BYXC.new_empty((*skip.shape[:3], x_BYXC.shape[-1] + skip.shape[-1])),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda x_BYXC, skip: skip.numel() // skip.shape[-1],
)


def upsample_concat(x_BYXC: Tensor, skip_BYXD: Tensor, *, impl: str | None = None) -> Tensor:
    """x [B, Y, X, C], skip [B, 2 Y, 2 X, D] -> [B, 2 Y, 2 X, C + D], contiguous; both have one dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError where the maps do not fit.
    """
    batch, rows, columns, _ = x_BYXC.shape
    if skip_BYXD.shape[:3] != (batch, 2 * rows, 2 * columns):
        raise ValueError(f"a map of {list(skip_BYXD.shape)} is not twice as large as {list(x_BYXC.shape)}")
    return _upsample_concat(x_BYXC, skip_BYXD, impl=impl)
