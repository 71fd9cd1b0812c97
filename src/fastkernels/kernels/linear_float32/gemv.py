"""linear_float32 in Triton for one row: the kernel of linear/gemv.py, whose y is float32 here."""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import gemv
from fastkernels.kernels.linear.gemv import launch, unsupported

__all__ = ["linear_float32", "unsupported"]


def linear_float32(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    return launch(x_TK, weight_NK, bias_N, gemv.tile_of(weight_NK.shape[1]), torch.float32)
