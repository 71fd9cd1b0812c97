"""resize_grid as one matrix product: weights [T, M N] by the table. Nothing is read on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.resize_grid.axis import weights
from fastkernels.kernels.resize_grid.places import places


def resize_grid(table_MND: Tensor, sizes_B2: Tensor, num_tokens: int) -> Tensor:
    rows, columns, dim = table_MND.shape
    dtype = torch.promote_types(table_MND.dtype, torch.float32)
    at = places(sizes_B2, num_tokens)
    u_TM = weights(at.y, at.height.to(dtype)[:, None], rows, dtype)
    v_TN = weights(at.x, at.width.to(dtype)[:, None], columns, dtype)
    both_TMN = u_TM[:, :, None] * v_TN[:, None, :]
    return (both_TMN.flatten(1) @ table_MND.to(dtype).reshape(-1, dim)).to(table_MND.dtype)
