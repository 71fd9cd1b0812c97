"""How far results are from the right ones: relative L2 errors of the whole and of its worst row.

Everything is computed where the tensors lie, in float64, in slices of rows; only scalars travel to the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_SLICE_ELEMENTS = 1 << 24  # 128 MiB of float64 temporaries at a time


class Errors(NamedTuple):
    """Relative L2 error of the whole output and of its worst row; `vanishing`: absolute RMS of the worst row
    that has no relative error."""

    whole: float
    row: float
    vanishing: float = 0.0

    def worst(self, other: Errors) -> Errors:
        return Errors(*map(max, self, other))


def errors(
    x: Tensor, oracle: Tensor, dtype: torch.dtype | None = None, apart_R: Tensor | None = None
) -> Errors:
    """Errors of `x` against `oracle` where both are finite; `dtype` (default x's) decides where a row
    vanishes, and `apart_R` (bool) says which rows have no relative error besides. What is too large for its
    square is infinitely wrong: nothing may compare with NaN."""
    x_RC, o_RC = rows(x), rows(oracle)
    vanishing_rms = torch.finfo(dtype or x.dtype).smallest_normal
    squares = _squares(x_RC, o_RC, vanishing_rms, apart_R, masked=False)
    if not all(map(math.isfinite, squares)):
        squares = _squares(x_RC, o_RC, vanishing_rms, apart_R, masked=True)
    error_sq, oracle_sq, row_sq, vanishing_sq = squares
    found = error_sq / oracle_sq if oracle_sq else 0.0, row_sq, vanishing_sq
    return Errors(*(math.inf if math.isnan(square) else math.sqrt(square) for square in found))


def _squares(
    x_RC: Tensor, o_RC: Tensor, vanishing_rms: float, apart_R: Tensor | None, masked: bool
) -> list[float]:
    """||x - o||^2 and ||o||^2 over rows that do not vanish, the worst row's (||x - o|| / ||o||)^2 of these
    that are not apart, and the worst mean square of x - o of the others. masked: of what is finite in both;
    otherwise anything that is not makes one of them so. Half of the passes over the data are for the mask."""
    parts = [torch.zeros(4, dtype=torch.float64, device=x_RC.device)]
    for at, part, truth in _slices(x_RC, o_RC):
        apart = part - truth
        if masked:
            both = part.isfinite() & truth.isfinite()  # their difference may not be
            apart, truth = torch.where(both, apart, 0), torch.where(both, truth, 0)
        error_R, norm_R = (torch.linalg.vector_norm(side, dim=1).square() for side in (apart, truth))
        vanishes_R = norm_R <= vanishing_rms**2 * part.shape[1]
        is_apart_R = vanishes_R if apart_R is None else vanishes_R | apart_R[at]
        relative_R = torch.where(is_apart_R, 0, _relative(error_R, norm_R))
        absolute_R = torch.where(is_apart_R, error_R, 0) / max(1, part.shape[1])
        error_sq, oracle_sq = (torch.where(vanishes_R, 0, square_R).sum() for square_R in (error_R, norm_R))
        parts.append(torch.stack([error_sq, oracle_sq, relative_R.max(), absolute_R.max()]))
    found_P4 = torch.stack(parts).cpu()
    return [*found_P4[:, :2].sum(0).tolist(), *found_P4[:, 2:].amax(0).tolist()]


def _relative(error_R: Tensor, norm_R: Tensor) -> Tensor:
    return error_R / norm_R.clamp_min(torch.finfo(torch.float64).tiny)


def rows_beyond(x: Tensor, oracle: Tensor, most: float) -> Tensor:
    """Mask of the rows with a relative error of more than `most`."""
    found = []
    for _, part, truth in _slices(rows(x), rows(oracle)):
        error_R, norm_R = (side.square().sum(1) for side in (part - truth, truth))
        found.append(_relative(error_R, norm_R) > most**2)
    return torch.cat(found)


def _slices(x_RC: Tensor, o_RC: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows of both, and where they lie; the oracle's in float64."""
    step = max(1, _SLICE_ELEMENTS // max(1, x_RC.shape[1]))
    for start in range(0, x_RC.shape[0], step):
        at = slice(start, start + step)
        yield at, x_RC[at], o_RC[at].to(device=x_RC.device, dtype=torch.float64)


def rows(x: Tensor) -> Tensor:
    """[rows, elements of a row]; a vector or scalar is one row."""
    return x.reshape(1, -1) if x.ndim < 2 else x.flatten(1)
