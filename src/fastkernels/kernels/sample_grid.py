"""A grid of features at places between its points: bilinear, the corners of both aligned.

    o[t] = sum_ij u_i v_j table[m + i, n + j]        i, j in {0, 1}

    y = p[t, 0] (M - 1),  m = floor(y),  u_0 = 1 - (y - m),  u_1 = y - m;  v likewise of p[t, 1] and N

T tokens · M, N rows and columns of the table · D features · p places from 0, the first point of an axis, to
1, its last. A point beyond the last counts as the last; it weighs nothing. Weights and sums in float32
(float64 stays float64), rounded once to the dtype of the table. This is the mathematics of torch's
interpolate(mode="bilinear", align_corners=True) where places are r / (h - 1) of each row r of h.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def _reference(places_T2: Tensor, table_MND: Tensor) -> Tensor:
    dtype = torch.promote_types(table_MND.dtype, torch.float32)
    table, sides = table_MND.to(dtype), table_MND.shape[:2]
    at = [place_T.to(dtype) * (side - 1) for place_T, side in zip(places_T2.unbind(1), sides)]
    first = [y_T.floor().long().clamp(0, side - 1) for y_T, side in zip(at, sides)]
    second = [(m_T + 1).clamp(max=side - 1) for m_T, side in zip(first, sides)]
    u_T1, v_T1 = ((y_T - m_T)[:, None] for y_T, m_T in zip(at, first))
    (m, n), (below, right) = first, second
    upper_TD = (1 - v_T1) * table[m, n] + v_T1 * table[m, right]
    lower_TD = (1 - v_T1) * table[below, n] + v_T1 * table[below, right]
    return ((1 - u_T1) * upper_TD + u_T1 * lower_TD).to(table_MND.dtype)


_sample_grid = Kernel(
    "sample_grid",
    "(Tensor places, Tensor table) -> Tensor",
    _reference,
    fake=lambda places_T2, table_MND: table_MND.new_empty((places_T2.shape[0], table_MND.shape[-1])),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _reference, devices=("cpu", "cuda")),
    ),
    rows=lambda places_T2, table_MND: places_T2.shape[0],
)


def sample_grid(places_T2: Tensor, table_MND: Tensor, *, impl: str | None = None) -> Tensor:
    """[T, D], contiguous, in the dtype of the table.

    places_T2: row and column, float32 or float64, each from 0 to 1. Raises KernelError when `impl` cannot
    serve the call, ValueError for places of another shape.
    """
    if places_T2.dim() != 2 or places_T2.shape[1] != 2:
        raise ValueError(f"places must be [T, 2], not {list(places_T2.shape)}")
    return _sample_grid(places_T2, table_MND, impl=impl)
