"""Sum over the ranks of the group in flight (kernels/group.py), the same on every rank.

    y = sum_r x_r

x_r: what rank r brings; shape and dtype are the same on all. Every rank gets the same bits, because ranks
that differ by a rounding choose other tokens and other experts, and then wait for each other.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.group import Distributed, group
from fastkernels.kernels.work import Tally, size


def _reference(x: Tensor) -> Tensor:
    """Every rank gathers all, and adds them up in the order of ranks."""
    first, *others = group().gather(x)
    total = first.to(torch.promote_types(x.dtype, torch.float32))
    for other in others:
        total = total + other
    return total.to(x.dtype, copy=True, memory_format=torch.contiguous_format)


def _torch_unsupported(x: Tensor) -> str | None:
    if not isinstance(group(), Distributed):
        return "the ranks are simulated in one process"
    return None


def _torch(x: Tensor) -> Tensor:
    """NCCL on CUDA, Gloo on a CPU."""
    total = torch.clone(x, memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def _work(tally: Tally, x: Tensor) -> None:
    """As often as one rank's part of the sum, since switches can add up."""
    tally.received += size(x)


_all_reduce = Kernel(
    "all_reduce",
    "(Tensor x) -> Tensor",
    _reference,
    fake=lambda x: x.new_empty(x.shape),
    implementations=(
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=_torch_unsupported),
    ),
    rows=lambda x: x.numel(),
    work=_work,
)


def all_reduce(x: Tensor, *, impl: str | None = None) -> Tensor:
    """The sum of every rank's x, contiguous, in its shape and dtype; x stays as it is.

    A collective: every rank of the group must call it. Raises KernelError when `impl` cannot serve the call,
    RuntimeError without a group.
    """
    return _all_reduce(x, impl=impl)
