"""One block of a world model's transformer: a half over each frame, a half over the frames of each place.

    a = x + gate attention(n),  y = a + gate' mlp(layer_norm(a) (1 + scale') + shift')
    n = adaptive_norm(x, c)
    block = temporal(spatial(x)), each such a half with its own weights

B clips, T new frames of L tokens, the last of S frames, D hidden, H heads, K head size; gates, shift' and
scale' come from the adaptive norm of the frame's vector c. Rounded to the dtype of x after each sum.
Mirrors dit.SpatioTemporalDiTBlock of open-oasis, which recomputes what the caches hold.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels.nn.modulation import continued

from ..L1.layer_norm import ModulatedLayerNorm
from ..L2.adaptive_norm import AdaLayerNormZero
from ..L2.diffusion_attention import SpatialAxialAttention
from ..L2.mlp import MLP
from ..L2.temporal_attention import TemporalAxialAttention


class SpatioTemporalDiTBlock(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.s_norm1 = AdaLayerNormZero(hidden_size, eps)
        self.s_attn = SpatialAxialAttention(hidden_size, num_heads)
        self.s_norm2 = ModulatedLayerNorm(eps)
        self.s_mlp = MLP(hidden_size, intermediate_size, "gelu_tanh")
        self.t_norm1 = AdaLayerNormZero(hidden_size, eps)
        self.t_attn = TemporalAxialAttention(hidden_size, num_heads)
        self.t_norm2 = ModulatedLayerNorm(eps)
        self.t_mlp = MLP(hidden_size, intermediate_size, "gelu_tanh")

    def forward(
        self,
        x: Tensor,
        c: Tensor,
        spatial_rotary_emb: Tensor,
        temporal_rotary_emb: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
    ) -> Tensor:
        """x [B, T, L, D], c [B, T, D], rotations [L, K] and [T, K], caches [B L, S, H, K], of whose frames
        the last T are written -> [B, T, L, D]"""
        clips, (x_FLD, c_FD) = x.shape[0], (part.flatten(0, 1) for part in (x, c))
        n, *modulation = self.s_norm1(x_FLD, c_FD)
        o = self.s_attn(n, spatial_rotary_emb)
        x_FLD = continued(x_FLD, o, modulation, self.s_norm2, self.s_mlp)
        n, *modulation = self.t_norm1(x_FLD, c_FD)
        o = self.t_attn(n.unflatten(0, (clips, -1)), temporal_rotary_emb, key_cache, value_cache)
        x_FLD = continued(x_FLD, o.flatten(0, 1), modulation, self.t_norm2, self.t_mlp)
        return x_FLD.unflatten(0, (clips, -1))
