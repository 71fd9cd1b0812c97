"""bias_activation by PyTorch's operators: the sum is rounded to the dtype of x before the activation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def bias_activation(x_TC: Tensor, bias_C: Tensor, name: str) -> Tensor:
    sum_TC = x_TC.contiguous() + bias_C
    return F.silu(sum_TC, inplace=True) if name == "silu" else sum_TC
