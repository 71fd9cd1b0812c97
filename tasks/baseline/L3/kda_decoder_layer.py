"""One pre-norm layer of a decoder of Kimi Delta Attention and latent attention, with experts or without.

    h = hidden_states + residual
    a = h + mix(rms_norm(h; w_in))
    hidden_states, residual = mlp(rms_norm(a; w_post)), a

T tokens, D hidden; mix is Kimi Delta Attention, or latent attention (MLA); mlp is a mixture of experts, or a
gated dense block. Without a residual (first layer) h = hidden_states; the caller adds the last pair. Each sum
is rounded to the dtype of the input and normalised as rounded. No positions: the states carry the order.
Mirrors vllm.model_executor.models.kimi_linear.KimiDecoderLayer (is_kda with is_moe, is_kda with a dense
block, and neither is_kda).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..L1.rms_norm import RMSNorm
from ..L2.gated_mlp import GatedMLP
from ..L2.kda_attention import KimiDeltaAttention
from ..L2.mla_attention import MultiHeadLatentAttention
from ..L2.sigmoid_moe import SigmoidMoE


class KDADecoderLayer(nn.Module):
    def __init__(
        self, hidden_size: int, kda: dict[str, Any], moe: dict[str, Any], rms_norm_eps: float = 1e-5
    ) -> None:
        """kda, moe: the arguments of the block and of the experts, less hidden_size and rms_norm_eps."""
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.self_attn = KimiDeltaAttention(hidden_size, **kda, rms_norm_eps=rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.mlp = SigmoidMoE(hidden_size=hidden_size, **moe)

    def forward(self, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """hidden_states and residual [T, D] -> (hidden_states, residual)"""
        return _through(self, hidden_states, residual)


class DenseKDADecoderLayer(nn.Module):
    def __init__(
        self, hidden_size: int, kda: dict[str, Any], intermediate_size: int, rms_norm_eps: float = 1e-5
    ) -> None:
        """kda: the arguments of the block, less hidden_size and rms_norm_eps."""
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.self_attn = KimiDeltaAttention(hidden_size, **kda, rms_norm_eps=rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.mlp = GatedMLP(hidden_size, intermediate_size)

    def forward(self, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """hidden_states and residual [T, D] -> (hidden_states, residual)"""
        return _through(self, hidden_states, residual)


class MLADecoderLayer(nn.Module):
    def __init__(
        self, hidden_size: int, mla: dict[str, Any], moe: dict[str, Any], rms_norm_eps: float = 1e-5
    ) -> None:
        """mla, moe: the arguments of the block and of the experts, less hidden_size."""
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.self_attn = MultiHeadLatentAttention(hidden_size, **mla)
        self.post_attention_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.mlp = SigmoidMoE(hidden_size=hidden_size, **moe)

    def forward(self, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """hidden_states and residual [T, D] -> (hidden_states, residual)"""
        return _through(self, hidden_states, residual)


def _through(layer: Any, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """What each of the layers does with its own attention and block."""
    if residual is None:
        normed_TD, sum_TD = layer.input_layernorm(hidden_states), hidden_states
    else:
        normed_TD, sum_TD = layer.input_layernorm(hidden_states, residual)
    normed_TD, sum_TD = layer.post_attention_layernorm(layer.self_attn(normed_TD), sum_TD)
    return layer.mlp(normed_TD), sum_TD
