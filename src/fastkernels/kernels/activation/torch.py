"""activation by PyTorch's operators, which compute 16-bit elements in float32 and round once: before and
after the division, where there is one."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor

_OPERATORS = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "log_sigmoid": F.logsigmoid,
    "silu": F.silu,
}


def activation(x_TF: Tensor, name: str, divisor: float) -> Tensor:
    y_TF = _OPERATORS[name](x_TF.contiguous())
    return y_TF if divisor == 1 else y_TF.div_(divisor)
