"""A feature map at twice its rows and columns, channels last: nearest neighbours, exact.

    o[b, y, x] = x[b, y // 2, x // 2]

B images · Y, X rows and columns · C channels.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.upsample import reference


def _output_shape(x_BYXC: Tensor) -> tuple[int, int, int, int]:
    batch, rows, columns, channels = x_BYXC.shape
    return (batch, 2 * rows, 2 * columns, channels)


_upsample = Kernel(
    "upsample",
    "(Tensor x) -> Tensor",
    reference.upsample,
    fake=lambda x_BYXC: x_BYXC.new_empty(_output_shape(x_BYXC)),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda x_BYXC: 4 * x_BYXC.numel() // x_BYXC.shape[-1],
)


def upsample(x_BYXC: Tensor, *, impl: str | None = None) -> Tensor:
    """x [B, Y, X, C] -> [B, 2 Y, 2 X, C], contiguous.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _upsample(x_BYXC, impl=impl)
