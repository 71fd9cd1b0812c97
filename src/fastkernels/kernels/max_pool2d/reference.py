"""max_pool2d in plain PyTorch: the maximum of shifted maps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.max_pool2d.shapes import pooled_shape


def max_pool2d(x_BYXC: Tensor, window: int, stride: int, padding: int) -> Tensor:
    _, height, width, _ = pooled_shape(x_BYXC, window, stride, padding)
    padded_BYXC = F.pad(x_BYXC, (0, 0, padding, padding, padding, padding), value=-torch.inf)
    shifted = [
        padded_BYXC[:, u : u + stride * (height - 1) + 1 : stride, v : v + stride * (width - 1) + 1 : stride]
        for u in range(window)
        for v in range(window)
    ]
    return torch.stack(shifted).amax(0)
