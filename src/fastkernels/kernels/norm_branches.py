"""The norms around two parallel feed-forward branches, a dense one and one of experts.

    split_branches      h = residual + rms_norm(x; w)
                        y_i = rms_norm(h; w_i)                               i = 1, 2, 3
    join_branches       m = rms_norm(x1; w1) + rms_norm(x2; w2)
                        h = scale (residual + rms_norm(m; w))

T tokens · D hidden. Norms as kernels/rms_norm; sums, and the product with the scale, a tensor [1], are
rounded to the dtype of x as well.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel, registered
from fastkernels.kernels.rms_norm import rms_norm

Branches = tuple[Tensor, Tensor, Tensor, Tensor]


def _split_by(norm: Callable[..., Tensor]) -> Callable[..., Branches]:
    """One norm at a time."""

    def run(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, w1_D: Tensor, w2_D: Tensor, w3_D: Tensor,
            eps: float) -> Branches:  # fmt: skip
        h_TD = residual_TD + norm(x_TD, weight_D, eps)
        return h_TD, norm(h_TD, w1_D, eps), norm(h_TD, w2_D, eps), norm(h_TD, w3_D, eps)

    return run


def _join_by(norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """One norm at a time."""

    def run(x1_TD: Tensor, x2_TD: Tensor, residual_TD: Tensor, w1_D: Tensor, w2_D: Tensor, weight_D: Tensor,
            scale_1: Tensor, eps: float) -> Tensor:  # fmt: skip
        m_TD = norm(x1_TD, w1_D, eps) + norm(x2_TD, w2_D, eps)
        return (residual_TD + norm(m_TD, weight_D, eps)) * scale_1

    return run


_split_branches = Kernel(
    "split_branches",
    "(Tensor x, Tensor residual, Tensor weight, Tensor w1, Tensor w2, Tensor w3, float eps) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _split_by(registered["rms_norm"].reference),
    fake=lambda x_TD, *_: tuple(x_TD.new_empty(x_TD.shape) for _ in range(4)),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("parts", _split_by(rms_norm), devices=("cpu", "cuda")),
    ),
    rows=lambda x_TD, *_: x_TD.shape[0],
    adds_rows=True,
)

_join_branches = Kernel(
    "join_branches",
    "(Tensor x1, Tensor x2, Tensor residual, Tensor w1, Tensor w2, Tensor weight, Tensor scale, float eps) "
    "-> Tensor",
    _join_by(registered["rms_norm"].reference),
    fake=lambda x1_TD, *_: x1_TD.new_empty(x1_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("parts", _join_by(rms_norm), devices=("cpu", "cuda")),
    ),
    rows=lambda x1_TD, *_: x1_TD.shape[0],
    adds_rows=True,
)


def split_branches(
    x_TD: Tensor,
    residual_TD: Tensor,
    weight_D: Tensor,
    w1_D: Tensor,
    w2_D: Tensor,
    w3_D: Tensor,
    eps: float,
    *,
    impl: str | None = None,
) -> Branches:
    """(h, y1, y2, y3), each [T, D] and new; all tensors have one dtype.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _split_branches(x_TD, residual_TD, weight_D, w1_D, w2_D, w3_D, eps, impl=impl)


def join_branches(
    x1_TD: Tensor,
    x2_TD: Tensor,
    residual_TD: Tensor,
    w1_D: Tensor,
    w2_D: Tensor,
    weight_D: Tensor,
    scale_1: Tensor,
    eps: float,
    *,
    impl: str | None = None,
) -> Tensor:
    """h [T, D], new; all tensors have one dtype.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _join_branches(x1_TD, x2_TD, residual_TD, w1_D, w2_D, weight_D, scale_1, eps, impl=impl)
