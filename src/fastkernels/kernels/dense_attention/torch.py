"""dense_attention by torch's scaled_dot_product_attention: one call for rows of one length, else one each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.dense_attention.rows import are_equal, batched, lengths
from fastkernels.kernels.plans import capturing


def unsupported(
    kernel: str,
    q_THK: Tensor,
    k_SHK: Tensor,
    v_SHK: Tensor,
    query_starts_B1: Tensor,
    key_starts_B1: Tensor,
    scale: float,
    max_query_len: int,
    max_key_len: int,
) -> str | None:
    equal = are_equal(q_THK, k_SHK, query_starts_B1, max_query_len, max_key_len)
    if not equal and capturing(q_THK):
        return "reads lengths on the host: a CUDA graph would keep them"
    return checks.not_alike(q_THK, k_SHK, v_SHK)


def dense_attention(
    q_THK: Tensor,
    k_SHK: Tensor,
    v_SHK: Tensor,
    query_starts_B1: Tensor,
    key_starts_B1: Tensor,
    scale: float,
    max_query_len: int,
    max_key_len: int,
) -> Tensor:
    rows = len(query_starts_B1) - 1
    if rows and are_equal(q_THK, k_SHK, query_starts_B1, max_query_len, max_key_len):
        return _attend(q_THK, k_SHK, v_SHK, rows, scale).reshape(q_THK.shape)
    o_THK = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    query_lens, key_lens = lengths(query_starts_B1, key_starts_B1)
    parts = zip(
        q_THK.split(query_lens), k_SHK.split(key_lens), v_SHK.split(key_lens), o_THK.split(query_lens)
    )
    for q, k, v, o in parts:
        if len(q):
            o.copy_(_attend(q, k, v, 1, scale)[0])
    return o_THK


def _attend(q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, rows: int, scale: float) -> Tensor:
    """[B, T / B, H, K] of rows of one length."""
    q, k, v = (batched(x, rows) for x in (q_THK, k_SHK, v_SHK))
    return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2)
