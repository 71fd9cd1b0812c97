"""Sum over the ranks of the group in flight (kernels/group.py), the same on every rank.

    y = sum_r x_r

x_r: what rank r brings; shape and dtype are the same on all. Every rank gets the same bits, because ranks
that differ by a rounding choose other tokens and other experts, and then wait for each other.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.all_reduce import reference
from fastkernels.kernels.base import Implementation, Kernel

_all_reduce = Kernel(
    "all_reduce",
    "(Tensor x) -> Tensor",
    reference.all_reduce,
    fake=lambda x: x.new_empty(x.shape),
    implementations=(Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),),
    rows=lambda x: x.numel(),
)


def all_reduce(x: Tensor, *, impl: str | None = None) -> Tensor:
    """The sum of every rank's x, contiguous, in its shape and dtype; x stays as it is.

    A collective: every rank of the group must call it. Raises KernelError when `impl` cannot serve the call,
    RuntimeError without a group.
    """
    return _all_reduce(x, impl=impl)
