"""One pre-norm layer of a decoder that is a mixer of Mamba (or Mamba 2) alone, without a feed-forward block.

    s = hidden_states + residual
    hidden_states, residual = mixer(rms_norm(s; w)), s

T tokens, D hidden. The residual has the dtype of hidden_states, or is float32 beside 16-bit ones; each sum is
kept in its dtype and normalised as kept. Before the first layer it is zero; the caller adds the last pair. No
positions: the states carry the order.
Mirrors vllm.model_executor.models.mamba.MambaDecoderLayer and, as mamba2,
vllm.model_executor.models.mamba2.Mamba2DecoderLayer (where the residual is float32, transformers' MambaBlock
and Mamba2Block).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..L1.rms_norm import RMSNorm
from ..L2.mamba_mixer import MambaMixer
from ..L2.mamba_mixer2 import MambaMixer2


class MambaBlock(nn.Module):
    def __init__(self, hidden_size: int, mixer: dict[str, Any], layer_norm_epsilon: float = 1e-5) -> None:
        """mixer: the mixer's own arguments, less hidden_size."""
        super().__init__()
        self.norm = RMSNorm(hidden_size, layer_norm_epsilon)
        self.mixer = MambaMixer(hidden_size, **mixer)

    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """hidden_states and residual [T, D] -> (hidden_states, residual)"""
        normed_TD, sum_TD = self.norm(hidden_states, residual)
        return self.mixer(normed_TD), sum_TD


class Mamba2Block(nn.Module):
    def __init__(self, hidden_size: int, mixer: dict[str, Any], layer_norm_epsilon: float = 1e-5) -> None:
        """mixer: the mixer's own arguments, less hidden_size."""
        super().__init__()
        self.norm = RMSNorm(hidden_size, layer_norm_epsilon)
        self.mixer = MambaMixer2(hidden_size, **mixer)

    def forward(self, hidden_states: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """hidden_states and residual [T, D] -> (hidden_states, residual)"""
        normed_TD, sum_TD = self.norm(hidden_states, residual)
        return self.mixer(normed_TD), sum_TD
