"""Tokens of audio: the mean of two neighbouring rows of a clip, normalised and projected.

    y[p] = layer_norm((x[i[p, 0]] + x[i[p, 1]]) / 2; w, b) Wp^T + bp

T rows of all clips, P tokens, i [P, 2] which rows a token has, D hidden, O features of the decoder. Rounded
to the dtype of x after the mean, the norm and the product.
Mirrors the last lines of transformers.models.qwen2_5_omni.modeling_qwen2_5_omni.Qwen2_5OmniAudioEncoder.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L1.pool import GlobalMeanPool


class AudioPooler(nn.Module):
    def __init__(self, hidden_size: int, output_dim: int) -> None:
        super().__init__()
        self.avg_pooler = GlobalMeanPool()
        self.ln_post = LayerNorm(hidden_size)
        self.proj = Linear(hidden_size, output_dim, bias=True)

    def forward(self, hidden_states: Tensor, pairs: Tensor) -> Tensor:
        """hidden_states [T, D], pairs int64 [P, 2] -> [P, O]"""
        pairs_P2D = hidden_states.index_select(0, pairs.flatten()).unflatten(0, pairs.shape)
        return self.proj(self.ln_post(self.avg_pooler(pairs_P2D)))
