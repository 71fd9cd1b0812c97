"""cross_attention by torch's scaled_dot_product_attention: one call for rows of one length, else one each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.cross_attention.reference import host_rows
from fastkernels.kernels.plans import capturing


def unsupported(
    kernel: str,
    q_THK: Tensor,
    k_RSHK: Tensor,
    v_RSHK: Tensor,
    query_starts_B1: Tensor,
    rows_B: Tensor,
    scale: float,
    max_query_len: int,
) -> str | None:
    if q_THK.shape[0] != len(rows_B) * max_query_len and capturing(q_THK):
        return "reads lengths on the host: a CUDA graph would keep them"
    return checks.not_alike(q_THK, k_RSHK, v_RSHK)


def cross_attention(
    q_THK: Tensor,
    k_RSHK: Tensor,
    v_RSHK: Tensor,
    query_starts_B1: Tensor,
    rows_B: Tensor,
    scale: float,
    max_query_len: int,
) -> Tensor:
    # T queries in B rows of at most T / B each are T / B in every row.
    if q_THK.shape[0] == len(rows_B) * max_query_len and max_query_len:
        q_BLHK = q_THK.unflatten(0, (len(rows_B), max_query_len))
        o_BLHK = _attend(q_BLHK, k_RSHK.index_select(0, rows_B), v_RSHK.index_select(0, rows_B), scale)
        return o_BLHK.reshape(q_THK.shape)
    o_THK = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    rows = host_rows(query_starts_B1, rows_B)
    lengths = [length for length, _ in rows]
    for q, o, (length, row) in zip(q_THK.split(lengths), o_THK.split(lengths), rows):
        if length:
            o.copy_(_attend(q[None], k_RSHK[row, None], v_RSHK[row, None], scale)[0])
    return o_THK


def _attend(q_BLHK: Tensor, k_BSHK: Tensor, v_BSHK: Tensor, scale: float) -> Tensor:
    """[B, L, H, K]"""
    q, k, v = (x.transpose(1, 2) for x in (q_BLHK, k_BSHK, v_BSHK))
    return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2)
