"""Several inputs of one width, each multiplied by rows of its own of one weight.

    y[t] = [x[t, 0] W_0^T | x[t, 1] W_1^T | ...]          weight = [W_0; W_1; ...], sizes rows each

T tokens · M parts · K inputs · N outputs of all parts. Accumulates in at least float32, rounds to the dtype
of x.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def _reference(x_TMK: Tensor, weight_NK: Tensor, sizes: Sequence[int]) -> Tensor:
    parts = zip(x_TMK.unbind(1), weight_NK.split(list(sizes)), strict=True)
    return torch.cat([F.linear(x_TK, part_NK) for x_TK, part_NK in parts], -1)


def _matmul(x_TMK: Tensor, weight_NK: Tensor, sizes: Sequence[int]) -> Tensor:
    """A product for each part, written where it belongs."""
    y_TN = x_TMK.new_empty(x_TMK.shape[0], weight_NK.shape[0])
    places = zip(x_TMK.unbind(1), weight_NK.split(list(sizes)), y_TN.split(list(sizes), -1), strict=True)
    for x_TK, part_NK, place_TN in places:
        torch.mm(x_TK, part_NK.t(), out=place_TN)
    return y_TN


_linear_of_parts = Kernel(
    "linear_of_parts",
    "(Tensor x, Tensor weight, int[] sizes) -> Tensor",
    _reference,
    fake=lambda x_TMK, weight_NK, sizes: x_TMK.new_empty(x_TMK.shape[0], weight_NK.shape[0]),
    implementations=(
        Implementation("gemv", f"{__name__}_gemv"),
        Implementation("torch", _matmul, devices=("cpu", "cuda")),
    ),
    rows=lambda x_TMK, *_: x_TMK.shape[0],
    work=lambda tally, x, weight, sizes: tally.multiply(x, 2 * x.shape[0] * weight.numel()),
)


def linear_of_parts(
    x_TMK: Tensor, weight_NK: Tensor, sizes: Sequence[int], *, impl: str | None = None
) -> Tensor:
    """y_TN, contiguous; all tensors of one dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError where the sizes are not one for each part
    or do not add up to the rows of the weight.
    """
    if len(sizes) != x_TMK.shape[1] or sum(sizes) != weight_NK.shape[0]:
        raise ValueError(
            f"sizes {list(sizes)} are no {x_TMK.shape[1]} parts of a weight of {weight_NK.shape[0]} rows"
        )
    return _linear_of_parts(x_TMK, weight_NK, list(sizes), impl=impl)
