"""prefill_attention by torch's scaled_dot_product_attention over the reference's padded batches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.kv_cache.gather import gather, with_empty_key
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
    sinks_H: Tensor | None = None,
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
        mask = ~batch.hidden_RQS[:, None]
        if sinks_H is not None:
            bias_R1QS = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)
            sinks_RHQ1 = sinks_H.to(dtype)[:, None, None].expand(num_tiles, -1, longest, 1)
            mask = torch.cat((bias_R1QS.expand(-1, num_heads, -1, -1), sinks_RHQ1), -1)
            k_RJSK, v_RJSK = with_empty_key(k_RJSK), with_empty_key(v_RJSK)
        o_RHQK = F.scaled_dot_product_attention(
            q_RHQK, k_RJSK, v_RJSK, attn_mask=mask, scale=scale, enable_gqa=num_heads != num_kv_heads
        )
        flat = o_RHQK.transpose(1, 2).reshape(-1, num_heads, head_dim)
        o_THK[batch.tokens] = flat if batch.outputs is None else flat[batch.outputs]
    return o_THK
