"""Sum over the ranks of the group in flight (kernels/group.py), the same on every rank.

    y = sum_r x_r

x_r: what rank r brings; shape and dtype are the same on all. Every rank gets the same bits, because ranks
that differ by a rounding choose other tokens and other experts, and then wait for each other. Which
implementation serves a call depends on its shape and dtype alone: all ranks make the same choice.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from fastkernels.kernels import checks, symmetric
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.group import group, not_distributed
from fastkernels.kernels.work import Tally, size


def _reference(x: Tensor) -> Tensor:
    """Every rank gathers all, and adds them up in the order of ranks."""
    first, *others = group().gather(x)
    total = first.to(torch.promote_types(x.dtype, torch.float32))
    for other in others:
        total = total + other
    return total.to(x.dtype, copy=True, memory_format=torch.contiguous_format)


def _torch(x: Tensor) -> Tensor:
    """NCCL on CUDA, Gloo on a CPU."""
    total = torch.clone(x, memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def _library_unsupported(x: Tensor) -> str | None:
    if x.dtype not in (torch.bfloat16, torch.float32):
        return f"serves float32 and bfloat16, not {str(x.dtype).removeprefix('torch.')}"
    if not x.numel() or x.numel() * x.element_size() % (checks.VECTOR_BYTES * group().size):
        return f"needs a multiple of {checks.VECTOR_BYTES} bytes for each rank"
    return symmetric.unsupported_workspace(x.numel() * x.element_size())


def _shared(x: Tensor) -> Tensor:
    """Symmetric memory like x, which all ranks have left (the library's own barriers see to it)."""
    size_ = x.numel() * x.element_size()
    return symmetric.workspace(size_, x.device)[0][:size_].view(x.dtype)


def _one_shot(x: Tensor) -> Tensor:
    """Every rank loads all of every other's: fewest steps."""
    x = x.contiguous()
    copied = torch.ops.symm_mem.one_shot_all_reduce_copy
    return copied(_shared(x), x.view(-1), "sum", symmetric.group_name()).view(x.shape)


def _two_shot(x: Tensor) -> Tensor:
    """Every rank adds up its part and loads the others': fewest bytes."""
    shared = _shared(x)
    shared.copy_(x.reshape(-1))
    torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", symmetric.group_name())
    return shared.view(x.shape).clone()


def _work(tally: Tally, x: Tensor) -> None:
    """As often as one rank's part of the sum, since switches can add up."""
    tally.received += size(x)


_all_reduce = Kernel(
    "all_reduce",
    "(Tensor x) -> Tensor",
    _reference,
    fake=lambda x: x.new_empty(x.shape),
    implementations=(
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=not_distributed),
        Implementation("triton", "fastkernels.kernels.exchange_triton"),
        Implementation("one_shot", _one_shot, unsupported=_library_unsupported),
        Implementation("two_shot", _two_shot, unsupported=_library_unsupported),
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
