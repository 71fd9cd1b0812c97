"""all_reduce by torch.distributed: NCCL on CUDA, Gloo on a CPU."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from fastkernels.kernels.group import Distributed, group


def unsupported(kernel: str, x: Tensor) -> str | None:
    if not isinstance(group(), Distributed):
        return "the ranks are simulated in one process"
    return None


def all_reduce(x: Tensor) -> Tensor:
    total = torch.clone(x, memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total
