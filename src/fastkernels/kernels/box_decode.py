"""Boxes from the logits of a detector's cells: the expected distance from the cell's centre to each side.

    d_s = sum_j j softmax_j(logits[s])          s = left, top, right, bottom
    o = (x + 1/2 - d_left, y + 1/2 - d_top, x + 1/2 + d_right, y + 1/2 + d_bottom) stride

B images · Y, X rows and columns of cells · R bins of a distance, in cells. In float32 (float64 stays
float64), and so is the result: a float16 box in an image of 640 pixels would be right to half a pixel only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _fake(logits_BYXS: Tensor, stride: int) -> Tensor:
    batch, rows, columns, _ = logits_BYXS.shape
    return logits_BYXS.new_empty(
        (batch, rows * columns, 4), dtype=torch.promote_types(logits_BYXS.dtype, torch.float32)
    )


def _reference(logits_BYXS: Tensor, stride: int) -> Tensor:
    _, rows, columns, _ = logits_BYXS.shape
    dtype, device = torch.promote_types(logits_BYXS.dtype, torch.float32), logits_BYXS.device
    shares_BYX4R = logits_BYXS.to(dtype).unflatten(-1, (4, -1)).softmax(-1)
    bins_R = torch.arange(shares_BYX4R.shape[-1], dtype=dtype, device=device)
    distances_BYX4 = (shares_BYX4R * bins_R).sum(-1)
    y_YX, x_YX = torch.meshgrid(
        torch.arange(rows, dtype=dtype, device=device) + 0.5,
        torch.arange(columns, dtype=dtype, device=device) + 0.5,
        indexing="ij",
    )
    centre_YX2 = torch.stack((x_YX, y_YX), -1)
    low, high = centre_YX2 - distances_BYX4[..., :2], centre_YX2 + distances_BYX4[..., 2:]
    return (torch.cat((low, high), -1) * stride).flatten(1, 2)


def _torch(logits_BYXS: Tensor, stride: int) -> Tensor:
    """The expectation is a matrix product."""
    _, rows, columns, _ = logits_BYXS.shape
    dtype, device = torch.promote_types(logits_BYXS.dtype, torch.float32), logits_BYXS.device
    shares_BYX4R = logits_BYXS.unflatten(-1, (4, -1)).softmax(-1, dtype=dtype)
    distances_BYX4 = shares_BYX4R @ torch.arange(shares_BYX4R.shape[-1], dtype=dtype, device=device)
    x_X, y_Y = (torch.arange(size, dtype=dtype, device=device).add_(0.5) for size in (columns, rows))
    boxes_BYX4 = torch.empty_like(distances_BYX4)
    for side, (centre, sign) in enumerate(((x_X, -1), (y_Y[:, None], -1), (x_X, 1), (y_Y[:, None], 1))):
        torch.add(centre, distances_BYX4[..., side], alpha=sign, out=boxes_BYX4[..., side])
    return boxes_BYX4.mul_(stride).flatten(1, 2)


_box_decode = Kernel(
    "box_decode",
    "(Tensor logits, int stride) -> Tensor",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda logits_BYXS, stride: logits_BYXS.numel() // logits_BYXS.shape[-1],
)


def box_decode(logits_BYXS: Tensor, stride: int, *, impl: str | None = None) -> Tensor:
    """Boxes [B, Y X, 4] in pixels: left, top, right, bottom; cells row by row. logits [B, Y, X, 4 R].

    Raises KernelError when `impl` cannot serve the call, ValueError unless 4 divides the logits of a cell.
    """
    if logits_BYXS.shape[-1] % 4:
        raise ValueError(f"{logits_BYXS.shape[-1]} logits of a cell are not those of four sides")
    return _box_decode(logits_BYXS, stride, impl=impl)
