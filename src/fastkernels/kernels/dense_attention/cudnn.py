"""dense_attention by cuDNN through torch's SDPA, for rows of one length."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fastkernels.kernels import checks
from fastkernels.kernels.dense_attention.rows import are_equal, batched

MAX_HEAD_DIM = 128


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
    if bias_HQS is not None:
        return "serves no bias"
    if q_THK.shape[1] != k_SHK.shape[1]:
        return "needs as many heads of keys as of queries"
    if (head_dim := q_THK.shape[-1]) > MAX_HEAD_DIM or head_dim % 8:
        return f"serves head dimensions up to {MAX_HEAD_DIM} that 8 divides, not {head_dim}"
    if not len(q_THK) or not are_equal(q_THK, k_SHK, query_starts_B1, max_query_len, max_key_len):
        return "needs rows of one length"
    if torch.cuda.get_device_capability(q_THK.device) < (8, 0):
        return "needs compute capability 8.0"
    return checks.not_half(q_THK, k_SHK, v_SHK) or checks.not_aligned(q_THK, k_SHK, v_SHK)


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
    q, k, v = (batched(x, rows) for x in (q_THK, k_SHK, v_SHK))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        o_BHLK = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    return o_BHLK.transpose(1, 2).reshape(q_THK.shape)
