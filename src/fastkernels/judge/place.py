"""Where a result is wrong: one element, and how many are as wrong.

The gate (compare.py) bounds the error of a row or of the whole output. An element has no bound of its own;
`allowed` is what each may be off where all share that bound evenly. A row beyond its bound always holds an
element beyond `allowed`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.judge.distance import Distances, Errors, rows, slices
from fastkernels.records import Place


def worst(
    name: str, ours: Tensor, truth: Tensor, found: Distances, allowed: Errors, row: int | None, vanishes: bool
) -> Place:
    """The element that is farthest off, of `row`, or of all rows if the whole is what is wrong (None).
    `found`: the distances of `ours` from `truth`; `vanishes`: of this row no relative error is known."""
    x_RC, o_RC = rows(ours), rows(truth)
    if row is None:
        whole = allowed.whole * (found.norm_R.sum() / max(1, o_RC.numel())).sqrt()
        allowed_R = whole.expand(len(o_RC))
    else:
        allowed_R = (allowed.row * (found.norm_R / max(1, found.width)).sqrt()).clamp_min(allowed.vanishing)
        if vanishes:
            allowed_R[row] = allowed.vanishing
    beyond, begin, largest, at = 0, 0, -1.0, (0, 0)
    for part, right in slices(x_RC, o_RC):
        off = (part - right).abs().nan_to_num(nan=0.0)  # equal infinities
        bound_R1 = allowed_R[begin : begin + len(off), None].to(off.device)
        beyond += int((off > bound_R1).sum())
        if row is None or begin <= row < begin + len(off):
            first = 0 if row is None else row - begin
            among = off if row is None else off[first : first + 1]
            place = int(among.argmax())
            if float(among.flatten()[place]) > largest:
                largest = float(among.flatten()[place])
                at = (begin + first + place // off.shape[1], place % off.shape[1])
        begin += len(off)
    return _place(name, ours, truth, at[0] * o_RC.shape[1] + at[1], beyond, float(allowed_R[at[0]]))


def first(name: str, wrong: Tensor, ours: Tensor, truth: Tensor) -> Place:
    """The first element of those that the mask says."""
    return _place(name, ours, truth, int(wrong.flatten().int().argmax()), int(wrong.sum()))


def _place(
    name: str, ours: Tensor, truth: Tensor, flat: int, beyond: int, allowed: float | None = None
) -> Place:
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), ours.shape))
    return Place(
        output=name,
        index=index,
        expected=_number(truth[index]),
        got=_number(ours[index]),
        allowed=allowed,
        beyond=beyond,
        elements=ours.numel(),
    )


def _number(value: Tensor) -> str:
    return format(value.item(), ".6g") if value.is_floating_point() else str(value.item())
