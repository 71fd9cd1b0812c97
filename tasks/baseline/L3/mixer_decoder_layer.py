"""One pre-norm layer of a decoder that is a Mamba mixer alone, without a feed-forward block.

    s = hidden_states + residual
    hidden_states, residual = mixer(rms_norm(s; w)), s

T tokens, D hidden. Without a residual (first layer) s = hidden_states; the caller adds the last pair. With
residual_in_fp32 the residual is float32 (at least) whatever the dtype of hidden_states is; otherwise each sum
is rounded to that dtype. It is normalised as kept. No positions: the states carry the order.
Mirrors vllm.model_executor.models.mamba.MambaDecoderLayer (and, with residual_in_fp32, transformers'
MambaBlock).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..L1.rms_norm import RMSNorm
from ..L2.mamba_mixer import MambaMixer


class MambaBlock(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        mixer: dict[str, Any],
        layer_norm_epsilon: float = 1e-5,
        residual_in_fp32: bool = True,
    ) -> None:
        """mixer: the mixer's own arguments, less hidden_size."""
        super().__init__()
        self.residual_in_fp32 = residual_in_fp32
        self.norm = RMSNorm(hidden_size, layer_norm_epsilon)
        self.mixer = MambaMixer(hidden_size, **mixer)

    def forward(self, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """hidden_states and residual [T, D] -> (hidden_states, residual)"""
        normed_TD, sum_TD = normed_sum(hidden_states, residual, self.norm, self.residual_in_fp32)
        return self.mixer(normed_TD), sum_TD


def normed_sum(
    hidden_states: Tensor, residual: Tensor | None, norm: RMSNorm, residual_in_fp32: bool
) -> tuple[Tensor, Tensor]:
    """(norm(s), s)"""
    if residual is not None:
        return norm(hidden_states, residual)
    wide = torch.promote_types(hidden_states.dtype, torch.float32)
    return norm(hidden_states), hidden_states.to(wide) if residual_in_fp32 else hidden_states
