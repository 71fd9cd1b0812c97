"""A grid of features resampled to the grids of packed images: bilinear with antialiasing.

    o[t] = sum_m u_m(y) sum_n v_n(x) table[m, n]            t at row y, column x of its image's h x w grid

    u_m(y) = k_m / sum_m k_m,  k_m = max(0, 1 - |m + 1/2 - c| / max(s, 1)),  c = s (y + 1/2),  s = M / h

v likewise with w and N. T tokens · B images · M, N rows and columns of the table · D features. Images are
packed: image b has sizes[b, 0] x sizes[b, 1] tokens, row by row, behind those of image b - 1. Weights and
sums in float32 (float64 stays float64), rounded once to the dtype of the table. A grid of the table's own
size gives the table itself. This is the mathematics of torch's interpolate(mode="bilinear", antialias=True,
align_corners=False).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def weights(place_T: Tensor, size: Tensor | int, length: int, dtype: torch.dtype) -> Tensor:
    """[T, length]: what each entry of an axis of the table adds to a token at `place_T`.

    size: of the token's image along this axis, one for all or [T, 1].
    """
    scale = length / size
    centre_T1 = scale * (place_T.to(dtype) + 0.5)[:, None]
    entry_M = torch.arange(length, dtype=dtype, device=place_T.device) + 0.5
    reach = scale.clamp(min=1) if isinstance(scale, Tensor) else max(scale, 1)
    kernel_TM = (1 - (entry_M - centre_T1).abs() / reach).clamp(min=0)
    return kernel_TM / kernel_TM.sum(-1, keepdim=True)


class Places(NamedTuple):
    """int64 [T] each: row and column of a token in its image, and the size of that image."""

    y: Tensor
    x: Tensor
    height: Tensor
    width: Tensor


def places(sizes_B2: Tensor, num_tokens: int) -> Places:
    ends_B = sizes_B2.prod(1).cumsum(0)
    token_T = torch.arange(num_tokens, device=sizes_B2.device)
    image_T = torch.searchsorted(ends_B, token_T, right=True)
    height_T, width_T = (size_B[image_T] for size_B in sizes_B2.unbind(1))
    offset_T = token_T - (ends_B[image_T] - height_T * width_T)
    return Places(offset_T // width_T, offset_T % width_T, height_T, width_T)


def _reference(table_MND: Tensor, sizes_B2: Tensor, num_tokens: int) -> Tensor:
    """One axis after the other for each size. Sizes are read on the host.

    Not torch's interpolate: on a CPU (torch 2.13) its antialiased resampling to one column and several rows
    differs from the transpose of what it gives for one row and several columns.
    """
    sizes = [tuple(size) for size in sizes_B2.tolist()]
    table = table_MND.to(torch.promote_types(table_MND.dtype, torch.float32))
    resized = {size: _resized(table, *size) for size in dict.fromkeys(sizes)}
    packed_TD = torch.cat([table.new_empty(0, table.shape[-1]), *(resized[size] for size in sizes)])
    if len(packed_TD) != num_tokens:
        raise ValueError(f"num_tokens is {num_tokens}, the sizes have {len(packed_TD)} tokens")
    return packed_TD.to(table_MND.dtype)


def _resized(table_MND: Tensor, height: int, width: int) -> Tensor:
    """[height * width, D]"""
    rows, columns, _ = table_MND.shape
    u_YM, v_XN = (
        weights(torch.arange(size, device=table_MND.device), size, length, table_MND.dtype)
        for size, length in ((height, rows), (width, columns))
    )
    columns_MXD = torch.einsum("xn,mnd->mxd", v_XN, table_MND)
    return torch.einsum("ym,mxd->yxd", u_YM, columns_MXD).flatten(0, 1)


def _torch(table_MND: Tensor, sizes_B2: Tensor, num_tokens: int) -> Tensor:
    """One matrix product: weights [T, M N] by the table. Nothing is read on the host."""
    rows, columns, dim = table_MND.shape
    dtype = torch.promote_types(table_MND.dtype, torch.float32)
    at = places(sizes_B2, num_tokens)
    u_TM = weights(at.y, at.height.to(dtype)[:, None], rows, dtype)
    v_TN = weights(at.x, at.width.to(dtype)[:, None], columns, dtype)
    both_TMN = u_TM[:, :, None] * v_TN[:, None, :]
    return (both_TMN.flatten(1) @ table_MND.to(dtype).reshape(-1, dim)).to(table_MND.dtype)


_resize_grid = Kernel(
    "resize_grid",
    "(Tensor table, Tensor sizes, SymInt num_tokens) -> Tensor",
    _reference,
    fake=lambda table_MND, sizes_B2, num_tokens: table_MND.new_empty((num_tokens, table_MND.shape[-1])),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda table_MND, sizes_B2, num_tokens: num_tokens,
)


def resize_grid(table_MND: Tensor, sizes_B2: Tensor, num_tokens: int, *, impl: str | None = None) -> Tensor:
    """[num_tokens, D], contiguous, in the dtype of the table.

    sizes_B2: int64 rows and columns of each image, on the table's device; their products add up to
    num_tokens, which the host knows. Raises KernelError when `impl` cannot serve the call.
    """
    return _resize_grid(table_MND, sizes_B2, num_tokens, impl=impl)
