"""upsample_concat in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def upsample_concat(x_BYXC: Tensor, skip_BYXD: Tensor) -> Tensor:
    wide_BYXC = x_BYXC.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
    return torch.cat((wide_BYXC, skip_BYXD), dim=-1)
