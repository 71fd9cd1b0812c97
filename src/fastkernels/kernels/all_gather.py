"""What every rank of the group in flight brings, side by side, on every rank (kernels/group.py).

    y = x_0, x_1, ... one behind the other along `dim`

x_r: what rank r brings; shape and dtype are the same on all. Values are handed on as they are.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.group import group, not_distributed
from fastkernels.kernels.work import Tally, size


def _reference(x: Tensor, dim: int) -> Tensor:
    return torch.cat(group().gather(x), dim)


def _torch(x: Tensor, dim: int) -> Tensor:
    """NCCL on CUDA, Gloo on a CPU, along the first dimension: others are moved there and back."""
    x = x.movedim(dim, 0).contiguous()
    y = x.new_empty((group().size * x.shape[0], *x.shape[1:]))
    dist.all_gather_into_tensor(y, x)
    return y.movedim(0, dim).contiguous()


def _fake(x: Tensor, dim: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] *= group().size
    return x.new_empty(shape)


def _work(tally: Tally, x: Tensor, dim: int) -> None:
    tally.received += (group().size - 1) * size(x)


_all_gather = Kernel(
    "all_gather",
    "(Tensor x, int dim) -> Tensor",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=not_distributed),
        Implementation("triton", "fastkernels.kernels.exchange_triton"),
    ),
    rows=lambda x, dim: x.numel(),
    work=_work,
)


def all_gather(x: Tensor, dim: int = -1, *, impl: str | None = None) -> Tensor:
    """Every rank's x, contiguous, in its dtype: `dim` is as many times as long as there are ranks.

    A collective: every rank of the group must call it. Raises KernelError when `impl` cannot serve the call,
    RuntimeError without a group.
    """
    return _all_gather(x, dim, impl=impl)
