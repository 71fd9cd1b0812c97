"""activation by PyTorch's operators, which compute 16-bit elements in float32 and round once: before and
after the division, where there is one."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor


def _quick_gelu(x: Tensor) -> Tensor:
    """PyTorch has no operator for it, so 16-bit elements are widened here."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.sigmoid(1.702 * wide).mul_(wide).to(x.dtype)


_OPERATORS = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "log_sigmoid": F.logsigmoid,
    "quick_gelu": _quick_gelu,
    "silu": F.silu,
}


def activation(x_TF: Tensor, name: str, divisor: float) -> Tensor:
    y_TF = _OPERATORS[name](x_TF.contiguous())
    return y_TF if divisor == 1 else y_TF.div_(divisor)
