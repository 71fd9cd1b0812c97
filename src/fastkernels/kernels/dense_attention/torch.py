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
        o_BHLK = F.scaled_dot_product_attention(
            *(batched(x, rows) for x in (q_THK, k_SHK, v_SHK)), scale=scale
        )
        return o_BHLK.transpose(1, 2).reshape(q_THK.shape)
    o_THK = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    query_lens, key_lens = lengths(query_starts_B1, key_starts_B1)
    parts = zip(
        q_THK.split(query_lens), k_SHK.split(key_lens), v_SHK.split(key_lens), o_THK.split(query_lens)
    )
    for q, k, v, o in parts:
        if len(q):
            o_1HLK = F.scaled_dot_product_attention(*(batched(x, 1) for x in (q, k, v)), scale=scale)
            o.copy_(o_1HLK[0].transpose(0, 1))
    return o_THK
