"""Causal attention of a clip's new frames over all of its frames, at each place of a frame alone.

    o[n, t, h] = softmax(scale * q[n, t, h] . k[n, j, h]) v[n, j, h]        j <= S - T + t

N places of all clips · T new frames, the last of the S frames · H heads · K head dim. Softmax and sums in
float32 (float64 stays float64), rounded once to the dtype of the query.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.work import Tally


def _reference(q_NTHK: Tensor, k_NSHK: Tensor, v_NSHK: Tensor, scale: float) -> Tensor:
    dtype = torch.promote_types(q_NTHK.dtype, torch.float32)
    scores_NHTS = torch.einsum("nthk,nshk->nhts", q_NTHK.to(dtype), k_NSHK.to(dtype)) * scale
    is_later_TS = ~_is_seen(q_NTHK, k_NSHK)
    weights_NHTS = scores_NHTS.masked_fill(is_later_TS, -torch.inf).softmax(-1)
    return torch.einsum("nhts,nshk->nthk", weights_NHTS, v_NSHK.to(dtype)).to(q_NTHK.dtype).contiguous()


def _is_seen(q_NTHK: Tensor, k_NSHK: Tensor) -> Tensor:
    """bool [T, S]"""
    new, frames = q_NTHK.shape[1], k_NSHK.shape[1]
    return torch.ones(new, frames, dtype=torch.bool, device=q_NTHK.device).tril(frames - new)


def _torch(q_NTHK: Tensor, k_NSHK: Tensor, v_NSHK: Tensor, scale: float) -> Tensor:
    """PyTorch's attention; a lone frame, and all of them, need no mask in memory."""
    q, k, v = (x.transpose(1, 2) for x in (q_NTHK, k_NSHK, v_NSHK))
    new, frames = q.shape[2], k.shape[2]
    mask_TS = None if new in (1, frames) else _is_seen(q_NTHK, k_NSHK)
    is_causal = new == frames > 1
    o_NHTK = F.scaled_dot_product_attention(q, k, v, mask_TS, is_causal=is_causal, scale=scale)
    return o_NHTK.transpose(1, 2).contiguous()


def _work(tally: Tally, q_NTHK: Tensor, k_NSHK: Tensor, *_: Any) -> None:
    (new, heads, size), frames = q_NTHK.shape[1:], k_NSHK.shape[1]
    pairs = sum(range(frames - new + 1, frames + 1))
    tally.multiply(q_NTHK, 4 * len(q_NTHK) * heads * size * pairs)


_frame_attention = Kernel(
    "frame_attention",
    "(Tensor query, Tensor key, Tensor value, float scale) -> Tensor",
    _reference,
    fake=lambda q_NTHK, *_: q_NTHK.new_empty(q_NTHK.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda q_NTHK, *_: q_NTHK.shape[0] * q_NTHK.shape[1],
    work=_work,
)


def frame_attention(
    q_NTHK: Tensor, k_NSHK: Tensor, v_NSHK: Tensor, scale: float, *, impl: str | None = None
) -> Tensor:
    """Contiguous [N, T, H, K] in the dtype of the query.

    All have one dtype and may be strided views with a contiguous last dimension: keys and values are often
    the first frames of a longer cache. 1 <= T <= S. Raises KernelError when `impl` cannot serve the call.
    """
    return _frame_attention(q_NTHK, k_NSHK, v_NSHK, scale, impl=impl)
