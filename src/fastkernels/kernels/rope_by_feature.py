"""Rotary position embedding of queries and keys, interleaved pairs, an angle of its own for each feature.

    y[2j]     = x[2j]     cos[p, 2j]     - x[2j + 1] sin[p, 2j]          the token stands at p
    y[2j + 1] = x[2j + 1] cos[p, 2j + 1] + x[2j]     sin[p, 2j + 1]

T tokens · H heads · K head dim, even · P positions. A row of `cos_sin` is [cos .. | sin ..], K of each: a
pair with two angles is not rotated, its length changes. cos 1 and sin 0 leave a feature as it is. Products
and sums in float32 (float64 stays float64), rounded once to the dtype of the input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _reference(
    positions_T: Tensor, q_THK: Tensor, k_THK: Tensor, cos_sin_P2K: Tensor
) -> tuple[Tensor, Tensor]:
    compute = torch.promote_types(torch.promote_types(q_THK.dtype, cos_sin_P2K.dtype), torch.float32)
    cos_sin_T1K = cos_sin_P2K.index_select(0, positions_T).to(compute).unsqueeze(1).chunk(2, dim=-1)
    return _turned(q_THK, *cos_sin_T1K), _turned(k_THK, *cos_sin_T1K)


def _turned(x_THK: Tensor, cos_T1K: Tensor, sin_T1K: Tensor) -> Tensor:
    x = x_THK.to(cos_T1K.dtype)
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    partner_THK = torch.stack((-odd, even), dim=-1).flatten(-2)
    return (x * cos_T1K + partner_THK * sin_T1K).to(x_THK.dtype)


_rope_by_feature = Kernel(
    "rope_by_feature",
    "(Tensor positions, Tensor query, Tensor key, Tensor cos_sin) -> (Tensor, Tensor)",
    _reference,
    fake=lambda positions_T, q_THK, k_THK, _: (q_THK.new_empty(q_THK.shape), k_THK.new_empty(k_THK.shape)),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
    ),
    rows=lambda positions_T, *_: positions_T.shape[0],
)


def rope_by_feature(
    positions_T: Tensor, q_THK: Tensor, k_THK: Tensor, cos_sin_P2K: Tensor, *, impl: str | None = None
) -> tuple[Tensor, Tensor]:
    """Queries and keys with their positions, contiguous, in their dtype.

    positions: int64 or int32, each in [0, P). q and k have one shape and dtype and may be strided views with
    a contiguous last dimension; cos_sin is float32 or of the dtype of q. Raises KernelError when `impl`
    cannot serve the call.
    """
    return _rope_by_feature(positions_T, q_THK, k_THK, cos_sin_P2K, impl=impl)
