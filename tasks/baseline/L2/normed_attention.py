"""Self-attention block of a decoder whose queries, keys and values are normalised by heads; scores unscaled.

    [q | k | v] = x Wqkv^T                            with k_eq_v: [q | k] = x Wqk^T,  v = k
    q, k, v = rms_norm(q; w_q), rms_norm(k; w_k), rms_norm(v)        over each head, v without a weight
    q, k = rope(positions, q, k)
    y = attention(q, k, v) Wo^T                       scores q . k, times 1

T tokens, D hidden, H query heads, J kv heads, K head size. Rounded to the dtype of x after each line. Norms,
rotation and storing are one kernel where all are the baseline's own; it rounds as they do.
Mirrors vllm.model_executor.models.gemma4.Gemma4Attention.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.context import step
from fastkernels.nn.fusion import Fusion

from ..L1.rms_norm import RMSNorm, WeightlessRMSNorm
from ..L1.rope import RotaryEmbedding
from .paged_attention import PagedAttention
from .parallel_linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear


class NormedAttention(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_position: int,
        rope_parameters: dict[str, Any],
        rms_norm_eps: float = 1e-6,
        sliding_window: int | None = None,
        k_eq_v: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        q_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
        self.k_eq_v = k_eq_v
        self.qkv_sizes = [q_size, kv_size] if k_eq_v else [q_size, kv_size, kv_size]
        self.qkv_proj = (
            ColumnParallelLinear(hidden_size, q_size + kv_size)
            if k_eq_v
            else QKVParallelLinear(hidden_size, head_dim, num_heads, num_kv_heads)
        )
        # By their names random weights of scores that are not scaled are smaller (nn/random_weights.py).
        self.unscaled_q_norm = RMSNorm(head_dim, rms_norm_eps)
        self.unscaled_k_norm = RMSNorm(head_dim, rms_norm_eps)
        self.v_norm = WeightlessRMSNorm(head_dim, rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(head_dim, max_position, rope_parameters)
        self.attn = PagedAttention(num_heads, head_dim, 1.0, num_kv_heads, sliding_window)
        self.o_proj = RowParallelLinear(q_size, hidden_size)
        # What attends in self.attn is called either way.
        self.fuses = Fusion(self, "unscaled_q_norm", "unscaled_k_norm", "v_norm", "rotary_emb", "attn.store")

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """positions [T], hidden_states [T, D] -> [T, D]"""
        q, k, *values = self.qkv_proj(hidden_states).split(self.qkv_sizes, dim=-1)
        v = k if self.k_eq_v else values[0]
        q_THK, k_TJK, v_TJK = (x.unflatten(-1, (-1, self.head_dim)) for x in (q, k, v))
        if self.fuses and not hidden_states.is_meta:
            return self.o_proj(self.attn.attend(self._rotate_and_store(positions, q_THK, k_TJK, v_TJK)))
        q_THK, k_TJK = self.unscaled_q_norm(q_THK), self.unscaled_k_norm(k_TJK)
        v_TJK = self.v_norm(v_TJK)
        q, k = self.rotary_emb(positions, q_THK.flatten(1), k_TJK.flatten(1))
        return self.o_proj(self.attn(q, k, v_TJK.flatten(1)))

    def _rotate_and_store(self, positions: Tensor, q_THK: Tensor, k_TJK: Tensor, v_TJK: Tensor) -> Tensor:
        """The rotated query [T, H, K]; rotated keys, and values, are in the caches of self.attn then."""
        pools = self.attn.k_cache, self.attn.v_cache
        slots_T = step().slots_GT[self.attn.group]
        q_norm, k_norm, table_PR = self.unscaled_q_norm, self.unscaled_k_norm, self.rotary_emb.cos_sin_PR
        norms = q_norm.weight, k_norm.weight, q_norm.eps
        return kernels.norm_rope_store_kv(positions, q_THK, k_TJK, v_TJK, *norms, table_PR, *pools, slots_T)
