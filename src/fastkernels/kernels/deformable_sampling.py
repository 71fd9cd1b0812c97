"""Multi-scale deformable sampling: every query reads a few places of several maps, by weights of its own.

    o[b, q, h] = sum_p weights[b, q, h, p] bilinear(map_l(p)[b, :, :, h], places[b, q, h, p])

    x = places[.., 0] X_l - 1/2,  m = floor(x),  u_0 = 1 - (x - m),  u_1 = x - m;  rows likewise by Y_l
    bilinear = sum_ij u_i v_j map[n + j, m + i]                                  i, j in {0, 1}

B images · Q queries · H heads · D features of a head · N cells, those of all L maps one behind the other, row
by row; map l has Y_l rows and X_l columns · P places of a query, the first P / L in the first map, and so on.
Places are columns and rows from 0, the left or upper edge of a map, to 1; cells outside of it are zero.
Places, weights and sums in float32 (float64 stays float64), rounded once to the dtype of the value. This is
torch's grid_sample(mode="bilinear", padding_mode="zeros", align_corners=False), there with places from -1 to
1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.work import Tally

Sides = Sequence[int]  # Y_0, X_0, Y_1, X_1, ..


def _fake(value_BNHD: Tensor, sides: Sides, places_BQHP2: Tensor, weights_BQHP: Tensor) -> Tensor:
    return value_BNHD.new_empty((*places_BQHP2.shape[:3], value_BNHD.shape[-1]))


def _reference(value_BNHD: Tensor, sides: Sides, places_BQHP2: Tensor, weights_BQHP: Tensor) -> Tensor:
    """Four cells around each place, those outside weigh nothing."""
    dtype = torch.promote_types(value_BNHD.dtype, torch.float32)
    value_BNHD_, places, weights = (x.to(dtype) for x in (value_BNHD, places_BQHP2, weights_BQHP))
    batch, _, heads, _ = weights.shape
    image_B111 = torch.arange(batch, device=value_BNHD.device).view(-1, 1, 1, 1)
    head_H1 = torch.arange(heads, device=value_BNHD.device).view(-1, 1)
    out_BQHD = places.new_zeros((*weights.shape[:3], value_BNHD.shape[-1]))
    points, first = weights.shape[-1] * 2 // len(sides), 0
    for level, (rows, columns) in enumerate(zip(sides[::2], sides[1::2])):
        mine = slice(level * points, (level + 1) * points)
        x_BQHP, y_BQHP = places[..., mine, 0] * columns - 0.5, places[..., mine, 1] * rows - 0.5
        left_BQHP, top_BQHP = x_BQHP.floor(), y_BQHP.floor()
        for j in (0, 1):
            for i in (0, 1):
                column, row = left_BQHP + i, top_BQHP + j
                share = (1 - (x_BQHP - column).abs()) * (1 - (y_BQHP - row).abs())
                is_inside = (column >= 0) & (column < columns) & (row >= 0) & (row < rows)
                cell = first + row.clamp(0, rows - 1).long() * columns + column.clamp(0, columns - 1).long()
                share = torch.where(is_inside, share * weights[..., mine], 0)
                out_BQHD += (share[..., None] * value_BNHD_[image_B111, cell, head_H1]).sum(-2)
        first += rows * columns
    return out_BQHD.to(value_BNHD.dtype)


def _torch(value_BNHD: Tensor, sides: Sides, places_BQHP2: Tensor, weights_BQHP: Tensor) -> Tensor:
    """grid_sample of each map in float32: of the dtype of the value its places would be rounded, too."""
    batch, _, heads, places = weights_BQHP.shape
    grid = places_BQHP2.float().mul(2).sub_(1).transpose(1, 2).flatten(0, 1)  # [B H, Q, P, 2]
    weights = weights_BQHP.float().transpose(1, 2).flatten(0, 1)[:, None]
    points, first, out = places * 2 // len(sides), 0, None
    for level, (rows, columns) in enumerate(zip(sides[::2], sides[1::2])):
        mine = slice(level * points, (level + 1) * points)
        map_BNHD = value_BNHD[:, first : first + rows * columns].float()
        maps = map_BNHD.permute(0, 2, 3, 1).reshape(batch * heads, -1, rows, columns)
        found = F.grid_sample(maps, grid[:, :, mine], align_corners=False)  # [B H, D, Q, points]
        sums = found.mul_(weights[..., mine]).sum(-1)
        out = sums if out is None else out.add_(sums)
        first += rows * columns
    assert out is not None
    return out.unflatten(0, (batch, heads)).permute(0, 3, 1, 2).to(value_BNHD.dtype).contiguous()


def _torch_unsupported(value_BNHD: Tensor, *_: object) -> str | None:
    return "computes in float32" if value_BNHD.dtype == torch.float64 else None


def _work(tally: Tally, value_BNHD: Tensor, sides: Sides, places_BQHP2: Tensor, weights_BQHP: Tensor) -> None:
    """Of the value as many cells as there are around places, four each: few queries do not read all."""
    batch, queries, _, places = weights_BQHP.shape
    tally.look_up(value_BNHD, max(1, 4 * batch * queries * places // value_BNHD.shape[1]))


_deformable_sampling = Kernel(
    "deformable_sampling",
    "(Tensor value, int[] sides, Tensor places, Tensor weights) -> Tensor",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=_torch_unsupported),
    ),
    rows=lambda value_BNHD, sides, places_BQHP2, weights_BQHP: weights_BQHP.shape[:2].numel(),
)


def deformable_sampling(
    value_BNHD: Tensor,
    sides: Sides,
    places_BQHP2: Tensor,
    weights_BQHP: Tensor,
    *,
    impl: str | None = None,
) -> Tensor:
    """[B, Q, H, D], contiguous, in the dtype of the value. sides: rows and columns of each map, a flat list.

    Raises KernelError when `impl` cannot serve the call, ValueError where shapes do not fit.
    """
    if len(sides) % 2 or not sides:
        raise ValueError(f"sides must be rows and columns of each map, not {list(sides)}")
    cells = sum(rows * columns for rows, columns in zip(sides[::2], sides[1::2]))
    if value_BNHD.shape[1] != cells:
        raise ValueError(f"maps of {list(sides)} have {cells} cells, the value has {value_BNHD.shape[1]}")
    if places_BQHP2.shape != (*weights_BQHP.shape, 2):
        raise ValueError(
            f"places {list(places_BQHP2.shape)} are not those of {list(weights_BQHP.shape)} weights"
        )
    if weights_BQHP.shape[-1] % (len(sides) // 2):
        raise ValueError(f"{weights_BQHP.shape[-1]} places do not fall evenly into {len(sides) // 2} maps")
    return _deformable_sampling(value_BNHD, list(sides), places_BQHP2, weights_BQHP, impl=impl)
