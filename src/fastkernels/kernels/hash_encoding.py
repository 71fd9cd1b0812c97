"""A point as features of several grids, whose nodes share the rows of one table by a hash.

    p = scale_l x + 0.5,  g = floor(p),  w = p - g            level l, at each of the 8 corners c of {0, 1}^3:
    y[l F : (l + 1) F] = sum_c prod_i |1 - c_i - w_i| table[offset_l + row_l(g + c)]

    row_l(g) = g.x + g.y res + g.z res^2                             where the res^3 nodes have a row each
    row_l(g) = g.x ^ 2654435761 g.y ^ 805459861 g.z                  elsewhere; both modulo the level's rows

M points in [0, 1]^3 · L levels of F features each, whose last grid nodes may wrap round. Computed in float32
(float64 stays float64), y has the dtype of the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

PRIMES = (2654435761, 805459861)
_ROWS_OF = 8  # which a level's rows are a multiple of
_WORD = (1 << 32) - 1


class Levels(NamedTuple):
    """scales, nodes on a side, and where the rows of each level begin; the last entry is where they end."""

    scales: list[float]
    resolutions: list[int]
    offsets: list[int]


def levels_of(number: int, log2_rows: int, base_resolution: int, per_level_scale: float) -> Levels:
    """Each grid is per_level_scale times as fine as the one before, and has at most 2^log2_rows rows."""
    scales, resolutions, offsets = [], [], [0]
    for level in range(number):
        scale = base_resolution * per_level_scale**level - 1
        resolution = math.ceil(scale) + 1
        rows = min(-(-(resolution**3) // _ROWS_OF) * _ROWS_OF, 1 << log2_rows)
        scales.append(scale)
        resolutions.append(resolution)
        offsets.append(offsets[-1] + rows)
    return Levels(scales, resolutions, offsets)


def _reference(
    x_M3: Tensor,
    table_EF: Tensor,
    scales: Sequence[float],
    resolutions: Sequence[int],
    offsets: Sequence[int],
) -> Tensor:
    wide = torch.promote_types(torch.promote_types(x_M3.dtype, table_EF.dtype), torch.float32)
    found = []
    for level in range(len(scales)):
        weight_MC, row_MC = _corners(x_M3.to(wide), level, scales, resolutions, offsets)
        found.append(torch.einsum("mc,mcf->mf", weight_MC, table_EF[row_MC].to(wide)))
    return torch.cat(found, -1).to(table_EF.dtype)


def _corners(
    x_M3: Tensor, level: int, scales: Sequence[float], resolutions: Sequence[int], offsets: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """(weights [M, 8], rows int64 [M, 8])"""
    side, first, rows = resolutions[level], offsets[level], offsets[level + 1] - offsets[level]
    p_M3 = x_M3 * scales[level] + 0.5
    g_M3 = p_M3.floor()
    w_M3, node_M3 = p_M3 - g_M3, g_M3.long()
    weights, places = [], []
    for corner in product((0, 1), repeat=3):
        x, y, z = (node_M3[:, axis] + corner[axis] for axis in range(3))
        if side**3 <= rows:
            place = x + y * side + z * side * side
        else:
            place = x ^ (y * PRIMES[0] & _WORD) ^ (z * PRIMES[1] & _WORD)
        wx, wy, wz = (w_M3[:, axis] if corner[axis] else 1 - w_M3[:, axis] for axis in range(3))
        weights.append(wx * wy * wz)
        places.append(place % rows + first)
    return torch.stack(weights, -1), torch.stack(places, -1)


def _by_bags(
    x_M3: Tensor,
    table_EF: Tensor,
    scales: Sequence[float],
    resolutions: Sequence[int],
    offsets: Sequence[int],
) -> Tensor:
    """All levels and corners at once; those of a cell are a bag of rows with weights."""
    side_L1, first_L1 = torch.tensor(resolutions)[:, None], torch.tensor(offsets[:-1])[:, None]
    rows_L1 = torch.tensor(offsets).diff()[:, None]
    p_ML3 = x_M3[:, None] * torch.tensor(scales, dtype=x_M3.dtype)[:, None] + 0.5
    g_ML3 = p_ML3.floor()
    is_after_83 = torch.tensor(list(product((False, True), repeat=3)))
    w_ML83 = (p_ML3 - g_ML3)[:, :, None]
    weight_ML8 = torch.where(is_after_83, w_ML83, 1 - w_ML83).prod(-1)
    x_ML8, y_ML8, z_ML8 = (g_ML3.long()[:, :, None] + is_after_83).unbind(-1)
    hashed_ML8 = x_ML8 ^ (y_ML8 * PRIMES[0] & _WORD) ^ (z_ML8 * PRIMES[1] & _WORD)
    counted_ML8 = x_ML8 + side_L1 * (y_ML8 + side_L1 * z_ML8)
    row_ML8 = torch.where(side_L1**3 <= rows_L1, counted_ML8, hashed_ML8) % rows_L1 + first_L1
    bags_BF = torch.nn.functional.embedding_bag(
        row_ML8.flatten(0, 1), table_EF, mode="sum", per_sample_weights=weight_ML8.flatten(0, 1)
    )
    return bags_BF.view(len(x_M3), len(scales) * table_EF.shape[1])


def _one_dtype(x_M3: Tensor, table_EF: Tensor, *_: object) -> str | None:
    if x_M3.dtype == table_EF.dtype and x_M3.dtype in (torch.float32, torch.float64):
        return None
    return f"computes in float32 or float64, not {x_M3.dtype} with a table of {table_EF.dtype}"


_hash_encoding = Kernel(
    "hash_encoding",
    "(Tensor x, Tensor table, float[] scales, int[] resolutions, int[] offsets) -> Tensor",
    _reference,
    fake=lambda x_M3, table_EF, scales, *_: table_EF.new_empty(len(x_M3), len(scales) * table_EF.shape[1]),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _by_bags, devices=("cpu",), unsupported=_one_dtype),
    ),
    rows=lambda x_M3, *_: len(x_M3),
    work=lambda tally, x_M3, table_EF, scales, *_: tally.look_up(table_EF, 8 * len(scales) * len(x_M3)),
)


def hash_encoding(
    x_M3: Tensor,
    table_EF: Tensor,
    scales: Sequence[float],
    resolutions: Sequence[int],
    offsets: Sequence[int],
    *,
    impl: str | None = None,
) -> Tensor:
    """[M, L F]; x in [0, 1], float32 or float64; levels as `levels_of` gives them.

    Raises ValueError for a table of other rows than the levels have, KernelError when `impl` cannot serve the
    call.
    """
    if len(table_EF) != offsets[-1]:
        raise ValueError(f"hash_encoding: a table of {len(table_EF)} rows, the levels have {offsets[-1]}")
    return _hash_encoding(x_M3, table_EF, list(scales), list(resolutions), list(offsets), impl=impl)
