"""Boxes from the logits of a detector's cells: the expected distance from the cell's centre to each side.

    d_s = sum_j j softmax_j(logits[s])          s = left, top, right, bottom
    o = (x + 1/2 - d_left, y + 1/2 - d_top, x + 1/2 + d_right, y + 1/2 + d_bottom) stride

B images · Y, X rows and columns of cells · R bins of a distance, in cells. In float32 (float64 stays
float64), and so is the result: a float16 box in an image of 640 pixels would be right to half a pixel only.
"""

from __future__ import annotations

# Names of torch, not torch itself: importing the implementation `.torch` binds that name here.
from torch import Tensor, float32, promote_types

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.box_decode import reference


def _fake(logits_BYXS: Tensor, stride: int) -> Tensor:
    batch, rows, columns, _ = logits_BYXS.shape
    return logits_BYXS.new_empty((batch, rows * columns, 4), dtype=promote_types(logits_BYXS.dtype, float32))


_box_decode = Kernel(
    "box_decode",
    "(Tensor logits, int stride) -> Tensor",
    reference.box_decode,
    fake=_fake,
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("inductor", f"{__name__}.inductor"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
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
