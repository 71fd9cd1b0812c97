"""cuDNN rounds float32 to tf32 unless it is told not to."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor


def full_float32(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """For the body, where x is float32 on CUDA: only then is the telling paid for."""
    if not x.is_cuda or x.dtype != torch.float32:
        return contextlib.nullcontext()
    cudnn = torch.backends.cudnn
    return cudnn.flags(
        enabled=True, benchmark=cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False
    )
