"""dense_attention by the varlen flash-attention kernel inside PyTorch: no package, rows of any lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.dense_attention import limits


def unsupported(kernel: str, q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, *rest: object) -> str | None:
    if reason := limits.flash(q_THK, k_SHK, v_SHK, bias=rest[-1]):
        return reason
    if rest[3] == 1 and q_THK.shape[1] != k_SHK.shape[1]:  # it takes rows for queries, and some may have none
        return "serves rows of one query with a head of keys for each of the query's alone"
    return "needs compute capability 8.0" if torch.cuda.get_device_capability(q_THK.device) < (8, 0) else None


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
    # Not public, but what PyTorch's own SDPA calls; the GPU tests hold it to the formula.
    output, *_ = torch.ops.aten._flash_attention_forward(
        q_THK,
        k_SHK,
        v_SHK,
        query_starts_B1,
        key_starts_B1,
        max_query_len,
        max_key_len,
        0.0,  # dropout
        causal,
        False,  # debug mask
        scale=scale,
    )
    return output
