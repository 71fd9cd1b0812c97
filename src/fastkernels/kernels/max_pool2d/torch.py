"""max_pool2d by PyTorch's operator, channels last."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def max_pool2d(x_BYXC: Tensor, window: int, stride: int, padding: int) -> Tensor:
    o_BCYX = F.max_pool2d(x_BYXC.permute(0, 3, 1, 2), window, stride, padding)
    return o_BCYX.permute(0, 2, 3, 1).contiguous()
