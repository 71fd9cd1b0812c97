"""prefill_attention by torch's scaled_dot_product_attention over the reference's padded batches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.kv_cache.gather import gather
from fastkernels.kernels.kv_cache.limits import reads_lengths_on_the_host
from fastkernels.kernels.plans import planned
from fastkernels.kernels.prefill_attention.reference import plan


def unsupported(kernel: str, q_THK: Tensor, k_cache: Tensor, v_cache: Tensor, *_: object) -> str | None:
    return checks.not_alike(q_THK, k_cache, v_cache) or reads_lengths_on_the_host(q_THK)


def prefill_attention(
    q_THK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_starts_B1: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_query_len: int,
    max_seq_len: int,
) -> Tensor:
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    num_heads, dtype = q_THK.shape[1], q_THK.dtype
    made_from = (query_starts_B1, seq_lens_B, block_tables_BN)
    static = (window, block_size, num_heads, num_kv_heads, head_dim)
    o_THK = torch.empty(q_THK.shape, dtype=dtype, device=q_THK.device)
    for batch in planned("prefill_attention", made_from, static, lambda: plan(*made_from, *static)):
        num_tiles, longest, _ = batch.hidden_RQS.shape
        q_RHQK = q_THK[batch.queries].view(num_tiles, longest, num_heads, head_dim).transpose(1, 2)
        k_RJSK, v_RJSK = (gather(cache, batch.keys, dtype) for cache in (k_cache, v_cache))
        seen_R1QS = ~batch.hidden_RQS[:, None]
        o_RHQK = F.scaled_dot_product_attention(
            q_RHQK, k_RJSK, v_RJSK, attn_mask=seen_R1QS, scale=scale, enable_gqa=num_heads != num_kv_heads
        )
        flat = o_RHQK.transpose(1, 2).reshape(-1, num_heads, head_dim)
        o_THK[batch.tokens] = flat if batch.outputs is None else flat[batch.outputs]
    return o_THK
