"""The largest value of every feature over tokens, or over the points of a cloud.

    o[b, d] = max_n x[b, n, d]

B sets · N tokens · D features. Exact; NaN stays NaN.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def _reference(x_BND: Tensor) -> Tensor:
    return x_BND.amax(1)


_max_tokens = Kernel(
    "max_tokens",
    "(Tensor x) -> Tensor",
    _reference,
    fake=lambda x_BND: x_BND.new_empty(x_BND.shape[0], x_BND.shape[2]),
    implementations=(Implementation("torch", _reference, devices=("cpu", "cuda")),),
    rows=lambda x_BND: x_BND.shape[0],
)


def max_tokens(x_BND: Tensor, *, impl: str | None = None) -> Tensor:
    """[B, N, D] -> [B, D], contiguous, in the dtype of x.

    Raises KernelError when `impl` cannot serve the call, ValueError where there is nothing to take it of.
    """
    if x_BND.dim() != 3 or not x_BND.shape[1]:
        raise ValueError(f"x must be [B, N, D] of at least one token, not {list(x_BND.shape)}")
    return _max_tokens(x_BND, impl=impl)
