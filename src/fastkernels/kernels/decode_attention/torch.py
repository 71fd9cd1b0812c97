"""decode_attention by torch's scaled_dot_product_attention over gathered keys, masked behind a row's end."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.decode_attention.reference import plan
from fastkernels.kernels.kv_cache.gather import gather, with_empty_key
from fastkernels.kernels.plans import planned


def unsupported(kernel: str, q_BHK: Tensor, k_cache: Tensor, v_cache: Tensor, *_: object) -> str | None:
    return checks.not_alike(q_BHK, k_cache, v_cache)


def decode_attention(
    q_BHK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_seq_len: int,
    sinks_H: Tensor | None = None,
) -> Tensor:
    (batch, _, head_dim), (_, block_size, num_heads, _) = q_BHK.shape, k_cache.shape
    width = min(max_seq_len, block_tables_BN.shape[1] * block_size, window or max_seq_len)
    if width == 0:
        return q_BHK.new_zeros(q_BHK.shape)
    static = (window, width, block_size, num_heads, q_BHK.dtype)
    keys, bias_BS, empty_B = planned("decode_attention", (seq_lens_B, block_tables_BN), static,
                                     lambda: plan(seq_lens_B, block_tables_BN, *static))  # fmt: skip
    # The queries that share a key/value head pass as a sequence of queries: they need no copies of K and V.
    q_BJGK = q_BHK.reshape(batch, num_heads, -1, head_dim)
    k_BJSK, v_BJSK = gather(k_cache, keys, q_BHK.dtype), gather(v_cache, keys, q_BHK.dtype)
    bias = bias_BS[:, None, None]
    if sinks_H is not None:
        sinks_BJG1 = sinks_H.to(bias.dtype).view(1, num_heads, -1, 1).expand(batch, -1, -1, -1)
        bias = torch.cat((bias.expand(*sinks_BJG1.shape[:3], -1), sinks_BJG1), -1)
        k_BJSK, v_BJSK = with_empty_key(k_BJSK), with_empty_key(v_BJSK)
    o = F.scaled_dot_product_attention(q_BJGK, k_BJSK, v_BJSK, attn_mask=bias, scale=scale)
    o_BHK = o.reshape(q_BHK.shape)
    return o_BHK if empty_B is None else o_BHK.masked_fill(empty_B[:, None, None], 0)
