"""One pre-norm layer of RWKV-7: time mix, then channel mix.

    h = hidden_states + residual                            first layer: h = layer_norm(hidden_states; w_pre)
    a, v_first = time_mix(layer_norm(h; w_attn), v_first)
    b = h + a
    hidden_states, residual = channel_mix(layer_norm(b; w_ffn)), b

T tokens, D hidden; the norms have weights and biases. Without a residual (first layer) h is the embedding,
normed where is_first; the caller adds the last pair. Each sum is rounded to the dtype of the input and
normalised as rounded. No positions: the states carry the order.
Mirrors fla.models.rwkv7.modeling_rwkv7.RWKV7Block.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels.nn.fusion import Fusion, add_and_norm

from ..L1.layer_norm import LayerNorm
from ..L2.rwkv7_mixer import RWKV7Attention, RWKV7FeedForward


class RWKV7Block(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        attn: dict[str, Any],
        norm_eps: float = 1e-5,
        is_first: bool = False,
    ) -> None:
        """attn: the time mix's own arguments, less hidden_size, norm_eps and is_first."""
        super().__init__()
        self.pre_norm = LayerNorm(hidden_size, norm_eps) if is_first else None
        self.attn_norm = LayerNorm(hidden_size, norm_eps)
        self.attn = RWKV7Attention(hidden_size, **attn, norm_eps=norm_eps, is_first=is_first)
        self.ffn_norm = LayerNorm(hidden_size, norm_eps)
        self.ffn = RWKV7FeedForward(hidden_size, intermediate_size)
        self.fuses = Fusion(self, "attn_norm", "ffn_norm")

    def forward(
        self, hidden_states: Tensor, residual: Tensor | None, v_first: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """hidden_states, residual and v_first [T, D] -> (hidden_states, residual, v_first)"""
        if residual is None:
            sum_TD = hidden_states if self.pre_norm is None else self.pre_norm(hidden_states)
            normed_TD = self.attn_norm(sum_TD)
        else:
            normed_TD, sum_TD = add_and_norm(hidden_states, residual, self.attn_norm, self.fuses)
        mixed_TD, first_TD = self.attn(normed_TD, v_first)
        normed_TD, sum_TD = add_and_norm(mixed_TD, sum_TD, self.ffn_norm, self.fuses)
        return self.ffn(normed_TD), sum_TD, first_TD
