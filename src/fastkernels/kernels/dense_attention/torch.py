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
    causal: bool,
    bias_HQS: Tensor | None,
) -> str | None:
    if causal and bias_HQS is not None:
        return "serves a causal mask or a bias, not both"
    equal = are_equal(q_THK, k_SHK, query_starts_B1, max_query_len, max_key_len)
    if not equal and capturing(q_THK):
        return "reads lengths on the host: a CUDA graph would keep them"
    return checks.not_alike(q_THK, k_SHK, v_SHK, *(() if bias_HQS is None else (bias_HQS,)))


def dense_attention(
    q_THK: Tensor,
    k_SHK: Tensor,
    v_SHK: Tensor,
    query_starts_B1: Tensor,
    key_starts_B1: Tensor,
    scale: float,
    max_query_len: int,
    max_key_len: int,
    causal: bool,
    bias_HQS: Tensor | None,
) -> Tensor:
    rows = len(query_starts_B1) - 1
    if rows and are_equal(q_THK, k_SHK, query_starts_B1, max_query_len, max_key_len):
        o_BLHK = _attend(q_THK, k_SHK, v_SHK, rows, scale, causal, bias_HQS)
        return o_BLHK.reshape(q_THK.shape).contiguous()
    o_THK = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    query_lens, key_lens = lengths(query_starts_B1, key_starts_B1)
    parts = zip(
        q_THK.split(query_lens), k_SHK.split(key_lens), v_SHK.split(key_lens), o_THK.split(query_lens)
    )
    for q, k, v, o in parts:
        if len(q):
            o.copy_(_attend(q, k, v, 1, scale, causal, bias_HQS)[0])
    return o_THK


def _attend(
    q_THK: Tensor,
    k_SHK: Tensor,
    v_SHK: Tensor,
    rows: int,
    scale: float,
    causal: bool,
    bias_HQS: Tensor | None,
) -> Tensor:
    """[B, T / B, H, K] of rows of one length."""
    q, k, v = (batched(x, rows) for x in (q_THK, k_SHK, v_SHK))
    mask_HQS = None if bias_HQS is None else bias_HQS[:, : q.shape[2], : k.shape[2]]
    are_shared = q.shape[1] != k.shape[1]
    o_BHLK = F.scaled_dot_product_attention(
        q, k, v, mask_HQS, is_causal=causal, scale=scale, enable_gqa=are_shared
    )
    return o_BHLK.transpose(1, 2)
