"""Sum over the ranks of the group in flight, added to a residual and normalised: the end of a split layer.

    s = sum_r x_r + residual                    rounded behind the sum over ranks, and to the residual's dtype
    y = s / sqrt(mean(s^2) + eps) * weight      as kernels/rms_norm

T tokens · D hidden. x_r: what rank r brings. The residual and the weight are the same on all ranks, and so
are the bits of both results.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fastkernels.kernels.all_reduce import all_reduce
from fastkernels.kernels.base import Implementation, Kernel, registered
from fastkernels.kernels.rms_norm import add_rms_norm
from fastkernels.kernels.work import Tally, size


def _in_turn(reduce: Callable[..., Tensor], normalise: Callable[..., tuple[Tensor, Tensor]]) -> Callable:
    """Two kernels."""

    def run(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return normalise(reduce(x_TD), residual_TD, weight_D, eps)

    return run


def _work(tally: Tally, x_TD: Tensor, *_: object) -> None:
    tally.received += size(x_TD)


_all_reduce_norm = Kernel(
    "all_reduce_norm",
    "(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    _in_turn(registered["all_reduce"].reference, registered["add_rms_norm"].reference),
    fake=lambda x_TD, residual_TD, *_: (x_TD.new_empty(x_TD.shape), residual_TD.new_empty(x_TD.shape)),
    implementations=(
        Implementation("parts", _in_turn(all_reduce, add_rms_norm), devices=("cpu", "cuda")),
        Implementation("triton", f"{__name__}_triton"),
    ),
    rows=lambda x_TD, *_: x_TD.numel(),
    work=_work,
    adds_rows=True,
)


def all_reduce_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float, *, impl: str | None = None
) -> tuple[Tensor, Tensor]:
    """(y [T, D] in the dtype of x, s [T, D] in that of the residual), new tensors.

    A collective: every rank of the group must call it. Raises KernelError when `impl` cannot serve the call,
    RuntimeError without a group.
    """
    return _all_reduce_norm(x_TD, residual_TD, weight_D, eps, impl=impl)
