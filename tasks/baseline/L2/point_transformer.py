"""What Point Transformer V3 is made of, on the voxels of several clouds.

    embedding    y = gelu(bn(conv_5(x)))
    cpe          y = layer_norm(conv_3(x) W^T + b)
    attention    [q | k | v] = (x Wqkv^T + b)[order],  y = attention(q, k, v)[inverse] Wo^T + bo
    pooling      y[m] = gelu(bn(max x[n] W^T + b))                        over the voxels n of cluster m
    unpooling    s = gelu(bn(skip Ws^T + bs)),  y = s + gelu(bn(x W^T + b))[cluster]

N voxels, M clusters, T places of P patches, C and D channels, H heads, K head size. conv_5 and conv_3 are
submanifold convolutions of 125 and of 27 taps, bn is a batch norm. Attention is of all to all in a patch,
scores scaled by 1/sqrt(K). A patch has voxels that follow each other on a curve: order[t] is the voxel of a
place, inverse[n] the place of a voxel; places of borrowed voxels are nobody's. unpooling returns s as well.
Rounded to the dtype of x after each product, norm and activation, after the attention and the sum.
Mirrors pointcept.models.point_transformer_v3.Embedding, the `cpe` of
pointcept.models.point_transformer_v3.Block, pointcept.models.point_transformer_v3.SerializedAttention,
pointcept.models.point_transformer_v3.SerializedPooling and
pointcept.models.point_transformer_v3.SerializedUnpooling.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.activation import GELU
from ..L1.batch_norm import BatchNorm1d
from ..L1.dense_attention import DenseAttention
from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L1.segment import SegmentMax
from ..L1.sparse_conv import SubMConv3d

STEM_TAPS, TAPS = 5, 3  # of a convolution, on each axis
EPS = 1e-3  # of a batch norm


class Embedding(nn.Module):
    def __init__(self, in_channels: int, embed_channels: int) -> None:
        super().__init__()
        self.conv = SubMConv3d(in_channels, embed_channels, STEM_TAPS, bias=False)
        self.norm = BatchNorm1d(embed_channels, EPS)
        self.act = GELU()

    def forward(self, feat: Tensor, neighbors: Tensor) -> Tensor:
        """[N, C], int32 [N, 125] -> [N, D]"""
        return self.act(self.norm(self.conv(feat, neighbors)))


class PositionalEncoding(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = SubMConv3d(channels, channels, TAPS)
        self.linear = Linear(channels, channels, bias=True)
        self.norm = LayerNorm(channels)

    def forward(self, feat: Tensor, neighbors: Tensor) -> Tensor:
        """[N, C], int32 [N, 27] -> [N, C]"""
        return self.norm(self.linear(self.conv(feat, neighbors)))


class SerializedAttention(nn.Module):
    def __init__(self, channels: int, num_heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        self.num_heads, self.head_size = num_heads, channels // num_heads
        self.qkv = Linear(channels, 3 * channels, bias=qkv_bias)
        self.attn = DenseAttention(self.head_size**-0.5)
        self.proj = Linear(channels, channels, bias=True)

    def forward(
        self, feat: Tensor, order: Tensor, inverse: Tensor, cu_seqlens: Tensor, max_seqlen: int
    ) -> Tensor:
        """[N, C], int64 [T], int64 [N], int32 [P+1] -> [N, C]"""
        qkv_TI = self.qkv(feat).index_select(0, order)
        q_THK, k_THK, v_THK = qkv_TI.unflatten(-1, (3, self.num_heads, self.head_size)).unbind(1)
        o_THK = self.attn(q_THK, k_THK, v_THK, cu_seqlens, max_seqlen)
        return self.proj(o_THK.flatten(1).index_select(0, inverse))


class SerializedPooling(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.proj = Linear(in_channels, out_channels, bias=True)
        self.pool = SegmentMax()
        self.norm = BatchNorm1d(out_channels, EPS)
        self.act = GELU()

    def forward(self, feat: Tensor, indices: Tensor, idx_ptr: Tensor) -> Tensor:
        """[N, C], int64 [N], int64 [M+1] -> [M, D]"""
        return self.act(self.norm(self.pool(self.proj(feat), indices, idx_ptr)))


class SerializedUnpooling(nn.Module):
    def __init__(self, in_channels: int, skip_channels: int, out_channels: int) -> None:
        super().__init__()
        self.proj = Linear(in_channels, out_channels, bias=True)
        self.norm = BatchNorm1d(out_channels, EPS)
        self.proj_skip = Linear(skip_channels, out_channels, bias=True)
        self.norm_skip = BatchNorm1d(out_channels, EPS)
        self.act = GELU()

    def forward(self, feat: Tensor, skip: Tensor, cluster: Tensor) -> tuple[Tensor, Tensor]:
        """[M, C], [N, S], int64 [N] -> y [N, D], s [N, D]"""
        up_MD = self.act(self.norm(self.proj(feat)))
        skip_ND = self.act(self.norm_skip(self.proj_skip(skip)))
        return skip_ND + up_MD.index_select(0, cluster), skip_ND
