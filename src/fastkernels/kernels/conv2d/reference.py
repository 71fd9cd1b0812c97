"""conv2d in plain PyTorch: a sum over the places of the filter, each a shifted map times one matrix."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.conv2d.shapes import output_shape


def conv2d(
    x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor | None, stride: int, padding: int, groups: int
) -> Tensor:
    dtype = torch.promote_types(x_BYXC.dtype, torch.float32)
    shape = output_shape(x_BYXC, weight_OUVI, stride, padding, groups)
    padded_BYXC = F.pad(x_BYXC.to(dtype), (0, 0, padding, padding, padding, padding))
    weight_OUVI = weight_OUVI.to(dtype)
    o_BYXO = torch.zeros(shape, dtype=dtype, device=x_BYXC.device)
    for u in range(weight_OUVI.shape[1]):
        for v in range(weight_OUVI.shape[2]):
            rows = slice(u, u + stride * (shape[1] - 1) + 1, stride)
            columns = slice(v, v + stride * (shape[2] - 1) + 1, stride)
            o_BYXO = o_BYXO + _matrix(padded_BYXC[:, rows, columns], weight_OUVI[:, u, v], groups)
    if bias_O is not None:
        o_BYXO = o_BYXO + bias_O.to(dtype)
    return o_BYXO.to(x_BYXC.dtype)


def _matrix(x_BYXC: Tensor, weight_OI: Tensor, groups: int) -> Tensor:
    """[B, Y, X, O]: each pixel's groups of channels by the filters of the group."""
    if groups == 1:
        return x_BYXC @ weight_OI.T
    x_BYXG1I = x_BYXC.unflatten(-1, (groups, 1, -1))
    return (x_BYXG1I * weight_OI.unflatten(0, (groups, -1))).sum(-1).flatten(-2)
