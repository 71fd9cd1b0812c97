"""Self-attention block of a decoder whose output is gated: project, normalise heads, rotate, attend over the
cache, gate, project back.

    [q | g] = x Wq^T by heads;  [k | v] = x Wkv^T
    q, k = rope(positions, gemma_rms_norm(q), gemma_rms_norm(k))             over each head
    y = (attention(q, k, v) * sigmoid(g)) Wo^T

T tokens, D hidden, H query heads, J kv heads, K head size; scale 1/sqrt(K). Rows of Wq lie by heads: K of a
query, then K of its gate. Norms have a weight around zero, to which 1 is added; rope may rotate the first
features of a head alone (partial_rotary_factor). Rounded to the dtype of x after each line, and after the
gate. Rotating and storing are one kernel where both are the baseline's own; it rounds as they do.
Mirrors vllm.model_executor.models.qwen3_next.Qwen3NextAttention (attn_output_gate).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.context import step
from fastkernels.nn.fusion import Fusion

from ..L1.rms_norm import GemmaRMSNorm
from ..L1.rope import RotaryEmbedding
from ..L1.sigmoid_gate import SigmoidGate
from .paged_attention import PagedAttention
from .parallel_linear import QKVParallelLinear, RowParallelLinear


class GatedAttention(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_position: int,
        rope_parameters: dict[str, Any],
        rms_norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.qkv_sizes = [2 * num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim]
        self.qkv_proj = QKVParallelLinear(hidden_size, head_dim, 2 * num_heads, num_kv_heads)
        self.q_norm, self.k_norm = (GemmaRMSNorm(head_dim, rms_norm_eps) for _ in range(2))
        self.rotary_emb = RotaryEmbedding(head_dim, max_position, rope_parameters)
        self.attn = PagedAttention(num_heads, head_dim, head_dim**-0.5, num_kv_heads)
        self.gate = SigmoidGate()
        self.o_proj = RowParallelLinear(num_heads * head_dim, hidden_size)
        self.fuses = Fusion(self, "rotary_emb", "attn.store")

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """positions [T], hidden_states [T, D] -> [T, D]"""
        q_gate, k, v = self.qkv_proj(hidden_states).split(self.qkv_sizes, dim=-1)
        q_THK, gate_THK = q_gate.unflatten(-1, (self.num_heads, 2 * self.head_dim)).chunk(2, dim=-1)
        q_THK, k_TJK = self.q_norm(q_THK), self.k_norm(k.unflatten(-1, (self.num_kv_heads, self.head_dim)))
        if self.fuses and not hidden_states.is_meta:
            o = self.attn.attend(self._rotate_and_store(positions, q_THK, k_TJK, v))
        else:
            q, k = self.rotary_emb(positions, q_THK.flatten(1), k_TJK.flatten(1))
            o = self.attn(q, k, v)
        return self.o_proj(self.gate(o.view(gate_THK.shape), gate_THK).flatten(1))

    def _rotate_and_store(self, positions: Tensor, q_THK: Tensor, k_TJK: Tensor, v: Tensor) -> Tensor:
        """The rotated query [T, H, K]; rotated keys, and values, are in the caches of self.attn then."""
        pools = self.attn.k_cache, self.attn.v_cache
        slots_T = step().slots_GT[self.attn.group]
        table_PR = self.rotary_emb.cos_sin_PR
        return kernels.rope_store_kv(positions, q_THK, k_TJK, v.view(k_TJK.shape), table_PR, *pools, slots_T)
