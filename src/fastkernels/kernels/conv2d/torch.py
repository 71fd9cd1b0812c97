"""conv2d by PyTorch's operator: cuDNN on CUDA, oneDNN on CPU. Channels-last maps and filters are used where
they lie: a permuted view is what PyTorch calls channels_last.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.full_float32 import full_float32


def conv2d(
    x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor | None, stride: int, padding: int, groups: int
) -> Tensor:
    x_BCYX, weight_OIUV = x_BYXC.permute(0, 3, 1, 2), weight_OUVI.permute(0, 3, 1, 2)
    with full_float32(x_BYXC):
        o_BOYX = F.conv2d(x_BCYX, weight_OIUV, bias_O, stride, padding, 1, groups)
    return o_BOYX.permute(0, 2, 3, 1).contiguous()
