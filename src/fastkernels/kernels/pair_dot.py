"""Products of pairs of a table's rows.

    s[p] = sum_d x[i[p], d] x[j[p], d]

P pairs · N rows · D columns. Summed in float32 (float64 stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _reference(x_ND: Tensor, pairs_2P: Tensor) -> Tensor:
    wide = torch.promote_types(x_ND.dtype, torch.float32)
    first_PD, second_PD = (x_ND[rows].to(wide) for rows in pairs_2P)
    return (first_PD * second_PD).sum(-1).to(x_ND.dtype)


_pair_dot = Kernel(
    "pair_dot",
    "(Tensor x, Tensor pairs) -> Tensor",
    _reference,
    fake=lambda x_ND, pairs_2P: x_ND.new_empty(pairs_2P.shape[1]),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
    ),
    rows=lambda x_ND, pairs_2P: pairs_2P.shape[1],
    work=lambda tally, x_ND, pairs_2P: tally.look_up(x_ND, pairs_2P.numel()),
)


def pair_dot(x_ND: Tensor, pairs_2P: Tensor, *, impl: str | None = None) -> Tensor:
    """[P] in x's dtype; pairs int32 or int64 [2, P], each in [0, N).

    Raises KernelError when `impl` cannot serve the call, IndexError for a row out of range on a CPU.
    """
    return _pair_dot(x_ND, pairs_2P, impl=impl)
