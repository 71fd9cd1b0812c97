"""Rows of a rotary table for tokens with positions on three axes: each frequency goes by one of them.

    o[t, j] = w[p[a(j), t], j],   o[t, j + R/2] = w[p[a(j), t], j + R/2]              j < R/2
    chunked        a = 0 for the first s0 frequencies, 1 for the s1 behind them, 2 for the last s2
    interleaved    a = 1 where j % 3 = 1 and j < 3 s1, 2 where j % 3 = 2 and j < 3 s2, 0 elsewhere

T tokens · P positions of the table w · R rotated features, R/2 frequencies · axes temporal, height, width.
With these rows, and its own number as the position of each token, `rope` rotates by three axes. Copied as
they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel

AXES = 3


def axes(section: Sequence[int], interleaved: bool) -> list[int]:
    """The axis of each frequency."""
    if not interleaved:
        return [axis for axis, count in enumerate(section) for _ in range(count)]
    return [j % AXES if j < AXES * section[j % AXES] else 0 for j in range(sum(section))]


def _reference(positions_3T: Tensor, cos_sin_PR: Tensor, section: Sequence[int], interleaved: bool) -> Tensor:
    axis_R = torch.tensor(axes(section, interleaved) * 2, device=positions_3T.device)
    return cos_sin_PR.gather(0, positions_3T.long().index_select(0, axis_R).T)


_mrope_table = Kernel(
    "mrope_table",
    "(Tensor positions, Tensor cos_sin, int[] section, bool interleaved) -> Tensor",
    _reference,
    fake=lambda positions_3T, cos_sin_PR, *_: cos_sin_PR.new_empty(
        positions_3T.shape[1], cos_sin_PR.shape[1]
    ),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _reference, devices=("cpu", "cuda")),
    ),
    rows=lambda positions_3T, *_: positions_3T.shape[1],
    work=lambda tally, positions_3T, cos_sin_PR, *_: tally.look_up(cos_sin_PR, positions_3T.shape[1]),
)


def mrope_table(
    positions_3T: Tensor,
    cos_sin_PR: Tensor,
    section: Sequence[int],
    interleaved: bool = False,
    *,
    impl: str | None = None,
) -> Tensor:
    """[T, R], contiguous, in the dtype of the table.

    positions: int64 or int32 [3, T], each in [0, P). Raises KernelError when `impl` cannot serve the call,
    ValueError for sections that are not those of the table.
    """
    if len(section) != AXES or 2 * sum(section) != cos_sin_PR.shape[1]:
        raise ValueError(
            f"section {list(section)}: expected {AXES} numbers with sum {cos_sin_PR.shape[1] // 2}"
        )
    if positions_3T.dim() != 2 or positions_3T.shape[0] != AXES:
        raise ValueError(f"positions must be [{AXES}, T], not {list(positions_3T.shape)}")
    return _mrope_table(positions_3T, cos_sin_PR, list(section), interleaved, impl=impl)
