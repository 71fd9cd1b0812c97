"""One pre-norm layer of a decoder with linear attention in the place of softmax attention.

    h = hidden_states + residual
    a = h + attention(rms_norm(h; w_attn))
    hidden_states, residual = mlp(rms_norm(a; w_mlp)), a

T tokens, D hidden. Without a residual (first layer) h = hidden_states; the caller adds the last pair. Each
sum is rounded to the dtype of the input and normalised as rounded. Only retention rotates by positions; the
state carries the order of both.
Mirrors fla.models.gla.modeling_gla.GLABlock and, as retention, fla.models.retnet.modeling_retnet.RetNetBlock.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.rms_norm import RMSNorm
from ..L2.gated_linear_attention import GatedLinearAttention, MultiScaleRetention
from ..L2.gated_mlp import GatedMLP


class LinearDecoderLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        gate_low_rank_dim: int = 16,
        gate_logit_normalizer: float = 16.0,
        norm_eps: float = 1e-6,
        hidden_act: str = "silu",
    ) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(hidden_size, norm_eps)
        self.attn = GatedLinearAttention(
            hidden_size, num_heads, key_dim, value_dim, gate_low_rank_dim, gate_logit_normalizer, norm_eps
        )
        self.mlp_norm = RMSNorm(hidden_size, norm_eps)
        self.mlp = GatedMLP(hidden_size, intermediate_size, hidden_act)

    def forward(self, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """hidden_states and residual [T, D] -> (hidden_states, residual)"""
        if residual is None:
            normed_TD, sum_TD = self.attn_norm(hidden_states), hidden_states
        else:
            normed_TD, sum_TD = self.attn_norm(hidden_states, residual)
        attended_TD = self.attn(normed_TD)
        normed_TD, sum_TD = self.mlp_norm(attended_TD, sum_TD)
        return self.mlp(normed_TD), sum_TD


class RetentionDecoderLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        max_position: int,
        norm_eps: float = 1e-6,
        hidden_act: str = "silu",
    ) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(hidden_size, norm_eps)
        self.attn = MultiScaleRetention(hidden_size, num_heads, key_dim, value_dim, max_position, norm_eps)
        self.mlp_norm = RMSNorm(hidden_size, norm_eps)
        self.mlp = GatedMLP(hidden_size, intermediate_size, hidden_act)

    def forward(
        self, positions: Tensor, hidden_states: Tensor, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """positions [T], hidden_states and residual [T, D] -> (hidden_states, residual)"""
        if residual is None:
            normed_TD, sum_TD = self.attn_norm(hidden_states), hidden_states
        else:
            normed_TD, sum_TD = self.attn_norm(hidden_states, residual)
        attended_TD = self.attn(positions, normed_TD)
        normed_TD, sum_TD = self.mlp_norm(attended_TD, sum_TD)
        return self.mlp(normed_TD), sum_TD
