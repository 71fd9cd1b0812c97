"""One pre-norm block of Point Transformer V3: positions by a convolution, attention in patches, feed-forward.

    a = x + cpe(c)                                    c = x, or what the sparse tensor carries
    b = a + attention(layer_norm(a; w1, b1))
    y = b + mlp(layer_norm(b; w2, b2))

N voxels, C channels. Behind an unpooling c is the skipped feature alone. Rounded to the dtype of x after
each sum.
Mirrors pointcept.models.point_transformer_v3.Block with pre_norm=True, in evaluation.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels.nn.fusion import Fusion, add_and_norm

from ..L1.layer_norm import LayerNorm
from ..L2.mlp import MLP
from ..L2.point_transformer import PositionalEncoding, SerializedAttention


class Block(nn.Module):
    def __init__(self, channels: int, num_heads: int, mlp_ratio: float = 4.0, qkv_bias: bool = True) -> None:
        super().__init__()
        self.cpe = PositionalEncoding(channels)
        self.norm1 = LayerNorm(channels)
        self.attn = SerializedAttention(channels, num_heads, qkv_bias)
        self.norm2 = LayerNorm(channels)
        self.mlp = MLP(channels, int(channels * mlp_ratio), "gelu")
        self.fuses = Fusion(self, "norm1", "norm2")

    def forward(
        self,
        feat: Tensor,
        neighbors: Tensor,
        order: Tensor,
        inverse: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        carried: Tensor | None = None,
    ) -> Tensor:
        """feat [N, C], neighbors int32 [N, 27], order int64 [T], inverse int64 [N], cu_seqlens int32 [P+1],
        carried [N, C] -> [N, C]"""
        encoded_NC = self.cpe(feat if carried is None else carried, neighbors)
        normed_NC, a_NC = add_and_norm(encoded_NC, feat, self.norm1, self.fuses)
        attended_NC = self.attn(normed_NC, order, inverse, cu_seqlens, max_seqlen)
        normed_NC, b_NC = add_and_norm(attended_NC, a_NC, self.norm2, self.fuses)
        return b_NC + self.mlp(normed_NC)
