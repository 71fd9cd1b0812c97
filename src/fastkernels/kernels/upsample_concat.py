"""A feature map at twice its rows and columns, with the channels of another one behind its own.

    o[b, y, x] = concat(x[b, y // 2, x // 2], skip[b, y, x])

B images · Y, X rows and columns of x · C channels of x · D of skip. Nearest neighbours: exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def _reference(x_BYXC: Tensor, skip_BYXD: Tensor) -> Tensor:
    wide_BYXC = x_BYXC.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
    return torch.cat((wide_BYXC, skip_BYXD), dim=-1)


def _torch(x_BYXC: Tensor, skip_BYXD: Tensor) -> Tensor:
    """Two copies into the result: no enlarged map between."""
    batch, rows, columns, channels = x_BYXC.shape
    o_BYXE = x_BYXC.new_empty((batch, 2 * rows, 2 * columns, channels + skip_BYXD.shape[-1]))
    o_BY2X2E = o_BYXE.view(batch, rows, 2, columns, 2, -1)
    o_BY2X2E[..., :channels] = x_BYXC[:, :, None, :, None]
    o_BYXE[..., channels:] = skip_BYXD
    return o_BYXE


_upsample_concat = Kernel(
    "upsample_concat",
    "(Tensor x, Tensor skip) -> Tensor",
    _reference,
    fake=lambda x_BYXC, skip: x_BYXC.new_empty((*skip.shape[:3], x_BYXC.shape[-1] + skip.shape[-1])),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    # reference / torch, us, of a tiny detector: 27 / 29.
    cpu=(),
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
