"""upsample in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def upsample(x_BYXC: Tensor) -> Tensor:
    return x_BYXC.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
