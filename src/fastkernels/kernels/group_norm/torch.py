"""group_norm by PyTorch's operators: the norm is rounded to the dtype of x before the activation.

Maps are copied to channels second: given channels-last ones, PyTorch 2.13 on the CPU loses the variance of a
large mean (4096.5 +- 0.5 comes out as +- 500).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def group_norm(
    x_BYXC: Tensor, weight_C: Tensor, bias_C: Tensor, groups: int, eps: float, activation: str
) -> Tensor:
    n_BCYX = F.group_norm(x_BYXC.permute(0, 3, 1, 2).contiguous(), groups, weight_C, bias_C, eps)
    if activation == "silu":
        n_BCYX = F.silu(n_BCYX, inplace=True)
    return n_BCYX.permute(0, 2, 3, 1).contiguous()
