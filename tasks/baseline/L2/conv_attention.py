"""Self-attention of the positions of a feature map, its projections 1 x 1 convolutions.

    ConvAttention        y = proj(attend(q, k, v) + pe(v)),  (q, k, v) = qkv(x)
    PSA                  y = conv(concat(a, d + ffn(d))),  d = b + attention(b),  (a, b) = halves of conv(x)
    ResidualAttention    y = x + out(attend(q, k, v)),  (q, k, v) = qkv(group_norm(x))

B images, Y, X rows and columns, C channels, H heads of value size V = C / H and key size K = V / 2. The
channels of qkv are q (K), k (K), v (V) of the first head, then of the next. All positions of an image
attend to all, scores scaled by 1 / sqrt(K); pe is depthwise 3 x 3. qkv, pe, proj and ffn's second
convolution have no activation, the others SiLU; norms folded. ResidualAttention has one head of size C for
queries, keys and values, and linear layers of all positions: what 1 x 1 convolutions are, channels last.
Softmax in at least float32; rounded to the dtype of x after each norm, convolution, attention and sum.
Mirrors ultralytics.nn.modules.block.Attention and PSA after fusing, and
diffusers.models.attention_processor.Attention as the middle of an autoencoder has it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..L1.dense_attention import DenseAttention
from ..L1.group_norm import GroupNorm
from ..L1.linear import Linear
from .conv_norm_act import ConvNormAct

HEAD_SIZE = 64  # of values, in heads of PSA


class ConvAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.value_size = num_heads, dim // num_heads
        self.key_size = self.value_size // 2
        self.qkv = ConvNormAct(dim, dim + 2 * num_heads * self.key_size, activation="none")
        self.proj = ConvNormAct(dim, dim, activation="none")
        self.pe = ConvNormAct(dim, dim, 3, g=dim, activation="none")
        self.attend = DenseAttention(self.key_size**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y, X, C]"""
        batch, rows, columns, _ = x.shape
        positions, value_size = rows * columns, self.value_size
        qkv_THQ = self.qkv(x).view(batch * positions, self.num_heads, -1)
        # Attention has one head size. The keys of a head lie behind its queries, so both are read as one
        # vector as long as a value; zeros behind the keys take that part out of the product.
        query_THV, value_THV = qkv_THQ.split(value_size, dim=-1)
        key_THV = F.pad(query_THV[..., self.key_size :], (0, value_size - self.key_size))
        starts_B1 = torch.arange(batch + 1, dtype=torch.int32, device=x.device) * positions
        o_THV = self.attend(query_THV, key_THV, value_THV, starts_B1, positions)
        values = value_THV.reshape(x.shape)
        return self.proj(o_THV.view(x.shape) + self.pe(values))


class PSA(nn.Module):
    def __init__(self, c1: int) -> None:
        super().__init__()
        half = c1 // 2
        self.cv1 = ConvNormAct(c1, 2 * half)
        self.cv2 = ConvNormAct(2 * half, c1)
        self.attn = ConvAttention(half, half // HEAD_SIZE)
        self.ffn = nn.Sequential(ConvNormAct(half, 2 * half), ConvNormAct(2 * half, half, activation="none"))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y, X, C]"""
        a, b = self.cv1(x).chunk(2, dim=-1)
        b = b + self.attn(b.contiguous())
        b = b + self.ffn(b)
        return self.cv2(torch.cat((a, b), dim=-1))


class ResidualAttention(nn.Module):
    def __init__(self, query_dim: int, norm_num_groups: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.group_norm = GroupNorm(norm_num_groups, query_dim, eps)
        self.to_qkv = Linear(query_dim, 3 * query_dim, bias=True)
        self.attend = DenseAttention(query_dim**-0.5)
        self.to_out = Linear(query_dim, query_dim, bias=True)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [B, Y, X, C] -> [B, Y, X, C]"""
        batch, rows, columns, channels = hidden_states.shape
        positions = rows * columns
        qkv_T3C = self.to_qkv(self.group_norm(hidden_states)).view(batch * positions, 3, channels)
        q_T1C, k_T1C, v_T1C = qkv_T3C.split(1, dim=1)
        starts_B1 = torch.arange(batch + 1, dtype=torch.int32, device=hidden_states.device) * positions
        o_T1C = self.attend(q_T1C, k_T1C, v_T1C, starts_B1, positions)
        return hidden_states + self.to_out(o_T1C.view(hidden_states.shape))
