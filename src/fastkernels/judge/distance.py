"""How far results are from the right ones: relative L2 errors of the whole and of its worst row.

Everything is computed where the tensors lie, in float64, in slices of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Distances:
    """||x - o||^2 and ||o||^2 of every row, and how many elements a row has."""

    error_R: Tensor
    norm_R: Tensor
    width: int

    def errors(self, dtype: torch.dtype, apart_R: Tensor | None = None) -> Errors:
        """`dtype` decides where a row vanishes; `apart_R` (bool) says which rows have no relative error
        besides. What is too large for its square is infinitely wrong: nothing may compare with NaN."""
        none_R = self._none(dtype, apart_R)
        error_R, norm_R = (torch.where(none_R, 0, square_R) for square_R in (self.error_R, self.norm_R))
        absolute_R = torch.where(none_R, self.error_R, 0) / max(1, self.width)
        parts = [error_R.sum(), norm_R.sum(), *map(_largest, (_relative(error_R, norm_R), absolute_R))]
        error_sq, oracle_sq, row_sq, vanishing_sq = torch.stack(parts).tolist()
        found = error_sq / oracle_sq if oracle_sq else 0.0, row_sq, vanishing_sq
        return Errors(*(math.inf if math.isnan(square) else math.sqrt(square) for square in found))

    def relative(self, dtype: torch.dtype, apart_R: Tensor | None = None) -> Tensor:
        """The relative error of every row; 0 where it has none."""
        squares_R = _relative(self.error_R, self.norm_R).nan_to_num(nan=math.inf)
        return torch.where(self._none(dtype, apart_R), 0, squares_R).sqrt()

    def vanishing_row(self, dtype: torch.dtype, apart_R: Tensor | None = None) -> int:
        """The worst of the rows that have no relative error."""
        return int(torch.where(self._none(dtype, apart_R), self.error_R, -1).argmax())

    def _none(self, dtype: torch.dtype, apart_R: Tensor | None) -> Tensor:
        vanishes_R = self.norm_R <= torch.finfo(dtype).smallest_normal ** 2 * self.width
        return vanishes_R if apart_R is None else vanishes_R | apart_R

    def beyond(self, most: float) -> Tensor:
        """Mask of the rows with a relative error of more than `most`."""
        return _relative(self.error_R, self.norm_R) > most**2


def errors(x: Tensor, oracle: Tensor, dtype: torch.dtype | None = None) -> Errors:
    """Errors of `x` against `oracle` where both are finite; `dtype` (default x's) decides where a row
    vanishes."""
    return distances(x, oracle).errors(dtype or x.dtype)


def distances(x: Tensor, oracle: Tensor) -> Distances:
    """How far the rows of `x` are from the oracle's, where both are finite; it lies where the oracle does."""
    x_RC, o_RC = rows(x), rows(oracle)
    found = _squares(x_RC, o_RC, masked=False)
    if not bool(torch.stack([found.error_R.sum(), found.norm_R.sum()]).isfinite().all()):
        found = _squares(x_RC, o_RC, masked=True)
    return found


def _squares(x_RC: Tensor, o_RC: Tensor, masked: bool) -> Distances:
    """masked: of what is finite in both; otherwise anything that is not makes its row so. Half of the passes
    over the data are for the mask."""
    errors, norms = [], []
    for part, truth in slices(x_RC, o_RC):
        apart = part - truth
        if masked:
            both = part.isfinite() & truth.isfinite()  # their difference may not be
            apart, truth = torch.where(both, apart, 0), torch.where(both, truth, 0)
        errors.append(torch.linalg.vector_norm(apart, dim=1).square())
        norms.append(torch.linalg.vector_norm(truth, dim=1).square())
    none = torch.zeros(0, dtype=torch.float64, device=x_RC.device)
    error_R, norm_R = (torch.cat([none, *each]).to(o_RC.device) for each in (errors, norms))
    return Distances(error_R, norm_R, x_RC.shape[1])


def _relative(error_R: Tensor, norm_R: Tensor) -> Tensor:
    return error_R / norm_R.clamp_min(torch.finfo(torch.float64).tiny)


def _largest(square_R: Tensor) -> Tensor:
    return square_R.max() if len(square_R) else square_R.sum()


def slices(x_RC: Tensor, o_RC: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of both, some at a time; the oracle's in float64."""
    step = max(1, _SLICE_ELEMENTS // max(1, x_RC.shape[1]))
    for start in range(0, x_RC.shape[0], step):
        at = slice(start, start + step)
        yield x_RC[at], o_RC[at].to(device=x_RC.device, dtype=torch.float64)


def rows(x: Tensor) -> Tensor:
    """[rows, elements of a row]; a vector or scalar is one row."""
    return x.reshape(1, -1) if x.ndim < 2 else x.flatten(1)
