"""One pre-norm layer of a decoder with a Mamba mixer in the place of attention, and a gated dense block.

    h = hidden_states + residual
    a = h + mixer(rms_norm(h; w_in))
    hidden_states, residual = mlp(rms_norm(a; w_post)), a

T tokens, D hidden. Without a residual (first layer) h = hidden_states; the caller adds the last pair. Each
sum is rounded to the dtype of the input and normalised as rounded. No positions: the states carry the order.
Mirrors vllm.model_executor.models.jamba.JambaMambaDecoderLayer (num_experts 1).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..L1.rms_norm import RMSNorm
from ..L2.gated_mlp import GatedMLP
from ..L2.mamba_mixer import MambaMixer


class MambaDecoderLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        mamba: dict[str, Any],
        rms_norm_eps: float = 1e-6,
        hidden_act: str = "silu",
    ) -> None:
        """mamba: the mixer's own arguments, less hidden_size and rms_norm_eps."""
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.mamba = MambaMixer(hidden_size, **mamba, rms_norm_eps=rms_norm_eps)
        # As layers with attention call it: a checkpoint has one name for both.
        self.post_attention_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.mlp = GatedMLP(hidden_size, intermediate_size, hidden_act)

    def forward(self, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """hidden_states and residual [T, D] -> (hidden_states, residual)"""
        if residual is None:
            normed_TD, sum_TD = self.input_layernorm(hidden_states), hidden_states
        else:
            normed_TD, sum_TD = self.input_layernorm(hidden_states, residual)
        normed_TD, sum_TD = self.post_attention_layernorm(self.mamba(normed_TD), sum_TD)
        return self.mlp(normed_TD), sum_TD
