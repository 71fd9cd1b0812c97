"""linear_float32 in Triton for 1 to 32 rows: the kernel of linear/triton.py, whose y is float32 here."""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import skinny
from fastkernels.kernels.linear.triton import launch, unsupported

__all__ = ["linear_float32", "unsupported"]


def linear_float32(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    return launch(x_TK, weight_NK, bias_N, skinny.tile_for(x_TK, weight_NK), torch.float32)
