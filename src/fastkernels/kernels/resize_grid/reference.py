"""resize_grid in plain PyTorch: one axis after the other for each size. Sizes are read on the host.

Not torch's interpolate: on a CPU (torch 2.13) its antialiased resampling to one column and several rows
differs from the transpose of what it gives for one row and several columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.resize_grid.axis import weights


def resize_grid(table_MND: Tensor, sizes_B2: Tensor, num_tokens: int) -> Tensor:
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
