"""log_sigmoid by PyTorch's own operator; a 16-bit gate is rounded twice, before and after the division."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def log_sigmoid(x_TD: Tensor, divisor: float) -> Tensor:
    return F.logsigmoid(x_TD.contiguous()).div_(divisor)
