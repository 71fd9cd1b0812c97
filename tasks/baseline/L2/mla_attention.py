"""Latent attention block of a decoder (MLA) without rotation: its cache has one latent for each token.

    q = x Wq^T by heads, [q_n | q_r];   [c | r] = x Wa^T;   c = rms_norm(c)
    [K | V] = Wb by heads:   k_n = K c,  v = V c,  k = [k_n | r]
    y = attention(q, k, v) Wo^T

computed with the latents themselves: q_n . k_n = (K^T q_n) . c, and sum_s p[s] v[s] = V sum_s p[s] c[s]. T
tokens, D hidden, H heads, N + R features of a query, V of a value, L of a latent; scale 1/sqrt(N + R). Rows
of Wb lie by heads: N of a key, then V of a value. Rounded to the dtype of x after each line and each product.
The ambient step says which rows and cache entries the tokens belong to: its first `num_decodes` rows have one
token each and take the decode kernel, the others the prefill kernel.
Mirrors vllm.model_executor.models.kimi_linear.KimiMLAAttention and
vllm.model_executor.layers.attention.MLAAttention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.cache import CacheOwner, Paged
from fastkernels.nn.context import prefill_starts, step

from ..L1.linear import Linear
from ..L1.mla_attention import MLADecode, MLAPrefill, StoreLatent
from ..L1.rms_norm import RMSNorm
from .parallel_linear import RowParallelLinear


class MLAAttention(CacheOwner):
    kv_cache: Tensor

    def __init__(self, kv_lora_rank: int, qk_rope_head_dim: int, scale: float) -> None:
        super().__init__()
        self.cache = Paged((kv_lora_rank + qk_rope_head_dim,), pools=("kv_cache",))
        self.store = StoreLatent()
        self.decode, self.prefill = MLADecode(kv_lora_rank, scale), MLAPrefill(kv_lora_rank, scale)

    def forward(self, q: Tensor, kv_c_normed: Tensor, k_pe: Tensor) -> Tensor:
        """q [T, H, L + R], kv_c_normed [T, L], k_pe [T, R] -> [T, H, L]. Writes the cache."""
        now = step()
        n, table_BM, lens_B = now.num_decodes, now.block_tables_GBN[self.group], now.seq_lens_B
        self.store(kv_c_normed, k_pe, self.kv_cache, now.slots_GT[self.group])
        if now.max_query_len == 0:
            return self.decode(q, self.kv_cache, lens_B, table_BM, now.max_seq_len)
        longest = (now.max_query_len, now.max_seq_len)
        if n == 0:
            return self.prefill(q, self.kv_cache, now.query_starts_B1, lens_B, table_BM, *longest)
        decoded = self.decode(q[:n], self.kv_cache, lens_B[:n], table_BM[:n], now.max_seq_len)
        behind = (prefill_starts(now.query_starts_B1, n), lens_B[n:], table_BM[n:])
        return torch.cat((decoded, self.prefill(q[n:], self.kv_cache, *behind, *longest)))


class MultiHeadLatentAttention(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        kv_lora_rank: int,
        kv_norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.num_heads, self.q_sizes = num_heads, [qk_nope_head_dim, qk_rope_head_dim]
        self.b_sizes, self.kv_lora_rank = [qk_nope_head_dim, v_head_dim], kv_lora_rank
        self.sizes = [num_heads * sum(self.q_sizes), kv_lora_rank, qk_rope_head_dim]
        self.fused_qkv_a_proj = Linear(hidden_size, sum(self.sizes))
        self.kv_a_layernorm = RMSNorm(kv_lora_rank, kv_norm_eps)
        rows = num_heads * sum(self.b_sizes)
        self.kv_b_weight = nn.Parameter(torch.empty(rows, kv_lora_rank), requires_grad=False)
        self.attn = MLAAttention(kv_lora_rank, qk_rope_head_dim, sum(self.q_sizes) ** -0.5)
        self.o_proj = RowParallelLinear(num_heads * v_head_dim, hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        q, c_TL, r_TR = self.fused_qkv_a_proj(hidden_states).split(self.sizes, dim=-1)
        q_n, q_r = q.unflatten(-1, (self.num_heads, -1)).split(self.q_sizes, dim=-1)
        key_HNL, value_HVL = self.kv_b_weight.unflatten(0, (self.num_heads, -1)).split(self.b_sizes, dim=1)
        q_HTL = torch.matmul(q_n.transpose(0, 1), key_HNL)
        q_THC = torch.cat((q_HTL.transpose(0, 1), q_r), dim=-1)
        o_THL = self.attn(q_THC, self.kv_a_layernorm(c_TL), r_TR)
        o_HTV = torch.matmul(o_THL.transpose(0, 1), value_HVL.transpose(1, 2))
        return self.o_proj(o_HTV.transpose(0, 1).flatten(1))
