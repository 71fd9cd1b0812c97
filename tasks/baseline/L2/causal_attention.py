"""Self-attention block of a decoder: project, normalise heads, rotate, attend over the cache, project back.

    [q | k | v] = x Wqkv^T (+ b)
    q, k = rms_norm(q), rms_norm(k)             over each head, only with qk_norm_eps
    q, k = rope(positions, q, k)                only with rope_parameters; with an mrope_section on three axes
    a = rms_norm(attention(q, k, v))            over all heads; normed only with sub_norm_eps
    y = a Wo^T (+ bo)

T tokens, D hidden, H query heads, J kv heads, K head size; scale 1/sqrt(K). quant_method: of the products
(parallel_linear.py). On several ranks (nn/partition) a rank has its share of the heads, and y is the sum over
the ranks. Rounded to the dtype of x after each line. Rotating and storing are one kernel where
both are the baseline's own; it rounds as they do.
Mirrors vllm.model_executor.models.llama.LlamaAttention, qwen2.Qwen2Attention (qkv_bias),
qwen3.Qwen3Attention (qk_norm_eps), gpt_oss.OAIAttention (has_sinks), the attention of
jamba.JambaAttentionDecoderLayer (no rope) and transformers.models.bitnet.modeling_bitnet.BitNetAttention
(sub_norm_eps).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.context import step
from fastkernels.nn.fusion import Fusion
from fastkernels.nn.partition import partition

from ..L1.mrope import MRotaryEmbedding
from ..L1.rms_norm import RMSNorm
from ..L1.rope import RotaryEmbedding
from .paged_attention import PagedAttention
from .parallel_linear import QKVParallelLinear, RowParallelLinear


class CausalAttention(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_position: int,
        rope_parameters: dict[str, Any] | None,
        qkv_bias: bool = False,
        qk_norm_eps: float | None = None,
        sliding_window: int | None = None,
        bias_o_proj: bool = False,
        sub_norm_eps: float | None = None,
        quant_method: str | None = None,
        has_sinks: bool = False,
    ) -> None:
        super().__init__()
        heads, kv_heads = map(len, partition().heads(num_heads, num_kv_heads))
        self.num_heads, self.num_kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.qkv_sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        self.qkv_proj = QKVParallelLinear(
            hidden_size, head_dim, num_heads, num_kv_heads, qkv_bias, quant_method
        )
        self.q_norm = RMSNorm(head_dim, qk_norm_eps) if qk_norm_eps is not None else None
        self.k_norm = RMSNorm(head_dim, qk_norm_eps) if qk_norm_eps is not None else None
        self.rotary_emb = _rope(head_dim, max_position, rope_parameters)
        self.attn = PagedAttention(heads, head_dim, head_dim**-0.5, kv_heads, sliding_window, has_sinks)
        attended = num_heads * head_dim
        self.attn_sub_norm = RMSNorm(attended, sub_norm_eps) if sub_norm_eps is not None else None
        self.o_proj = RowParallelLinear(attended, hidden_size, bias_o_proj, quant_method)
        # What attends in self.attn is called either way.
        self.fuses = self.rotary_emb is not None and Fusion(self, "rotary_emb", "attn.store")

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """positions [T], or [3, T] with an mrope_section, hidden_states [T, D] -> [T, D]"""
        q, k, v = self.qkv_proj(hidden_states).split(self.qkv_sizes, dim=-1)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q.view(-1, self.num_heads, self.head_dim)).flatten(1)
            k = self.k_norm(k.view(-1, self.num_kv_heads, self.head_dim)).flatten(1)
        if self.fuses and not hidden_states.is_meta:
            attended = self.attn.attend(self._rotate_and_store(positions, q, k, v))
        else:
            if self.rotary_emb is not None:
                q, k = self.rotary_emb(positions, q, k)
            attended = self.attn(q, k, v)
        return self.o_proj(attended if self.attn_sub_norm is None else self.attn_sub_norm(attended))

    def _rotate_and_store(self, positions: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The rotated query [T, H, K]; rotated keys, and values, are in the caches of self.attn then."""
        assert self.rotary_emb is not None
        q_THK, k_TJK, v_TJK = (x.view(x.shape[0], -1, self.head_dim) for x in (q, k, v))
        pools = self.attn.k_cache, self.attn.v_cache
        slots_T = step().slots_GT[self.attn.group]
        rows_T, table = self.rotary_emb.rows(positions)
        return kernels.rope_store_kv(rows_T, q_THK, k_TJK, v_TJK, table, *pools, slots_T)


def _rope(head_dim: int, max_position: int, parameters: dict[str, Any] | None) -> nn.Module | None:
    """By positions on three axes where the parameters have sections for them."""
    if parameters is None:
        return None
    kind = MRotaryEmbedding if "mrope_section" in parameters else RotaryEmbedding
    return kind(head_dim, max_position, parameters)
