"""conv1d by PyTorch's operator: cuDNN on CUDA, oneDNN on CPU; the bias is added before rounding."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.full_float32 import full_float32


def conv1d(x_BCF: Tensor, weight_NCK: Tensor, bias_N: Tensor | None, stride: int, padding: int) -> Tensor:
    with full_float32(x_BCF):
        return F.conv1d(x_BCF, weight_NCK, bias_N, stride, padding).contiguous()
