"""What is allowed: k times the baseline's error, or what rounding alone may cost, or what inputs excuse.

    A      = min(max(k e(b), u(dtype)), 1/2)         k = 2; compare.py says of what
    A'     = min(max(k e(b), k m), 1/2)              where the gate looks again, of the whole
    A'(r)  = min(k max(e(b), u, m(r), m'), 1/2)      of row r; m' is the m of most rows

m (conditioning.py) says how far the right answer moves when inputs move by a rounding. It is taken row by
row: a row of equal values, or one that a rounding turns round, excuses itself and no other. m' is there since
few draws of one row are luck. A few rows that move beyond the cap have no relative error.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastkernels.judge.distance import Distances, Errors, rows

K = 2.0
MAX_ALLOWED = 0.5  # zeros have error 1: no bound may come near
FEW = 1 / 16  # of rows, at most


def floor(dtype: torch.dtype) -> float:
    """u(dtype): what rounding alone may cost a correct kernel, whatever the baseline's luck.

    Half a unit in the last place (eps / 2) for 16-bit results, which are computed wider and rounded once; eps
    for float32, whose arithmetic rounds at the precision of its result, so one more operation is one more
    rounding.
    """
    eps = torch.finfo(dtype).eps
    return eps if dtype.itemsize >= 4 else eps / 2


def allow(baseline: Errors, dtype: torch.dtype) -> Errors:
    """A for the whole, for the worst row, and the absolute bound for rows in which the oracle vanishes."""
    smallest = torch.finfo(dtype).smallest_normal
    return Errors(
        whole=min(max(K * baseline.whole, floor(dtype)), MAX_ALLOWED),
        row=min(max(K * baseline.row, floor(dtype)), MAX_ALLOWED),
        vanishing=max(K * baseline.vanishing, smallest),
    )


def quick_bound(allowed: float) -> float:
    """Q(A) of compare.py."""
    return (1 + 1 / K) * allowed / (1 - allowed / K)


@dataclass(frozen=True, slots=True)
class Excuse:
    """What inputs excuse in one output, before it is taken k times: of the whole, of each row, and of rows
    that have no relative error; beside those in which the oracle vanishes, these are `apart_R`. `baseline`:
    its own errors, with these rows apart. `moved_R`: m of each row alone."""

    baseline: Errors
    whole: float
    moved_R: Tensor
    row_R: Tensor
    vanishing: float
    apart_R: Tensor | None


def excuse(theirs: Distances, baseline: Tensor, moves: Sequence[Distances], known_R: Tensor | None) -> Excuse:
    """Of one output, of which the baseline is `theirs` off. `known_R`: rows that are apart already."""
    dtype = baseline.dtype
    apart_R = few(torch.stack([each.beyond(MAX_ALLOWED / K) for each in (theirs, *moves)]).any(0))
    if apart_R is None:
        apart_R = known_R
    errors = theirs.errors(dtype, apart_R)
    own = errors.worst(_one_rounding(baseline))
    most = functools.reduce(Errors.worst, [each.errors(dtype, apart_R) for each in moves], own)
    m_R = torch.stack([each.relative(dtype, apart_R) for each in moves]).amax(0)
    row_R = m_R.clamp_min(max(own.row, _of_most(m_R))).clamp_max(MAX_ALLOWED / K)
    return Excuse(errors, most.whole, m_R, row_R, most.vanishing, apart_R)


def few(beyond_R: Tensor) -> Tensor | None:
    """The mask, where it is of few rows."""
    return beyond_R if int(beyond_R.sum()) <= FEW * len(beyond_R) else None


def _of_most(m_R: Tensor) -> float:
    """The largest, but for those of a few rows."""
    some_R = m_R[m_R > 0]
    return float(some_R.kthvalue(len(some_R) - int(FEW * len(some_R))).values) if len(some_R) else 0.0


def _one_rounding(output: Tensor) -> Errors:
    """What a row may lose to one rounding: it may be one large number, of which the baseline happened to lose
    nothing. In a whole of several rows such luck averages out."""
    lost = floor(output.dtype)
    return Errors(whole=lost if len(rows(output)) == 1 else 0.0, row=lost)
