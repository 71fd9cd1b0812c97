"""Every rank of the group in flight sends each of them a part (kernels/group.py).

    y[r] = x_r[i]       on rank i; x_r[0], x_r[1], ... are equal parts of the rows of x_r

x_r: what rank r brings; shape and dtype are the same on all. Values are handed on as they are.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.group import group, not_distributed
from fastkernels.kernels.reduce_scatter import divided
from fastkernels.kernels.work import Tally, size


def _reference(x: Tensor) -> Tensor:
    here = group()
    return torch.cat([theirs.chunk(here.size)[here.rank] for theirs in here.gather(x)])


def _torch(x: Tensor) -> Tensor:
    """NCCL on CUDA, Gloo on a CPU."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(y, x.contiguous())
    return y


def _work(tally: Tally, x: Tensor) -> None:
    tally.received += size(x) // group().size * (group().size - 1)


_all_to_all = Kernel(
    "all_to_all",
    "(Tensor x) -> Tensor",
    _reference,
    fake=lambda x: x.new_empty(x.shape),
    implementations=(
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=not_distributed),
        Implementation("triton", "fastkernels.kernels.exchange_triton"),
    ),
    rows=lambda x: x.numel(),
    work=_work,
)


def all_to_all(x: Tensor, *, impl: str | None = None) -> Tensor:
    """What the ranks send to this one, in their order, contiguous, in the shape and dtype of x.

    A collective: every rank of the group must call it. Raises KernelError when `impl` cannot serve the call,
    RuntimeError without a group, ValueError where the ranks do not divide the rows of x.
    """
    divided(x.shape[0], "rows")
    return _all_to_all(x, impl=impl)
