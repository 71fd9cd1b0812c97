"""Sum over the ranks of the group in flight, of which each rank gets its part (kernels/group.py).

    y = sum_r x_r[i]        on rank i; x_r[0], x_r[1], ... are equal parts of x_r along `dim`

x_r: what rank r brings; shape and dtype are the same on all. Sums of 16-bit values may be rounded at every
step.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel, registered
from fastkernels.kernels.group import group, not_distributed
from fastkernels.kernels.work import Tally, size


def _reference(x: Tensor, dim: int) -> Tensor:
    total = registered["all_reduce"].reference(x)
    return total.chunk(group().size, dim)[group().rank].contiguous()


def _torch(x: Tensor, dim: int) -> Tensor:
    """NCCL on CUDA, Gloo on a CPU, along the first dimension: others are moved there and back."""
    x = x.movedim(dim, 0).contiguous()
    y = x.new_empty((x.shape[0] // group().size, *x.shape[1:]))
    dist.reduce_scatter_tensor(y, x)
    return y.movedim(0, dim).contiguous()


def _fake(x: Tensor, dim: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] //= group().size
    return x.new_empty(shape)


def _work(tally: Tally, x: Tensor, dim: int) -> None:
    """As often as one rank's part, since switches can add up."""
    tally.received += size(x) // group().size


_reduce_scatter = Kernel(
    "reduce_scatter",
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


def reduce_scatter(x: Tensor, dim: int = -1, *, impl: str | None = None) -> Tensor:
    """This rank's part of the sum of every rank's x, contiguous, in its dtype; x stays as it is.

    A collective: every rank of the group must call it. Raises KernelError when `impl` cannot serve the call,
    RuntimeError without a group, ValueError where the ranks do not divide `dim`.
    """
    divided(x.shape[dim], "elements of the dimension that is scattered")
    return _reduce_scatter(x, dim, impl=impl)


def divided(count: int, what: str) -> int:
    """What each rank has of `count`, which the ranks must divide."""
    each, rest = divmod(count, group().size)
    if rest:
        raise ValueError(f"{group().size} ranks do not divide {count} {what}")
    return each
