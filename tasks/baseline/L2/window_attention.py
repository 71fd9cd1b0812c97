"""Cosine attention inside the windows of a feature map, with a continuous position bias: project, attend,
project back.

    [q | k | v] = x Wqkv^T + b
    y = attention(q, k, v; scale, table) Wo^T + bo
    scale[h] = exp(min(logit_scale[h], ln 100))
    table[h, r] = 16 sigmoid(cpb_mlp(d(r))[h])              cpb_mlp(d) = relu(d W0^T + b0) W2^T
    d(r) = sign(z) log2(|z| + 1) / 3,  z = 8 r / (W - 1)    r: rows and columns of query less key

B images, Y, X rows and columns, C channels, channels last; H heads of C / H features; windows of W x W. The
map is rolled by (-shift_size, -shift_size), then extended at its ends to whole windows. A pixel that fills a
window up has b as its q, k, v, and takes part as a key. In a rolled map pixels that were no neighbours see
each other with -100 (kernels/window_attention). Scale and table are computed in at least float32 when
weights are loaded, and kept. Rounded to the dtype of x after each product and after the attention.
Mirrors timm.models.swin_transformer_v2.WindowAttention with what its SwinTransformerV2Block does before and
after it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fastkernels import kernels

from ..L1.activation import ReLU
from ..L1.linear import Linear

HIDDEN = 512  # of cpb_mlp
MOST_SCALE = math.log(100)
MOST_BIAS = 16
LARGEST = 8  # offset before the logarithm


class WindowAttention(nn.Module):
    scale_H: Tensor
    table_HE: Tensor

    def __init__(self, dim: int, window_size: int, num_heads: int, shift_size: int = 0) -> None:
        super().__init__()
        self.window_size, self.shift_size = window_size, shift_size
        self.logit_scale = nn.Parameter(torch.empty(num_heads, 1, 1), requires_grad=False)
        self.cpb_mlp = nn.Sequential(Linear(2, HIDDEN, bias=True), ReLU(), Linear(HIDDEN, num_heads))
        self.qkv = Linear(dim, 3 * dim, bias=True)
        self.proj = Linear(dim, dim, bias=True)
        wide = torch.promote_types(torch.get_default_dtype(), torch.float32)
        entries = (2 * window_size - 1) ** 2
        self.register_buffer("scale_H", torch.empty(num_heads, dtype=wide), persistent=False)
        self.register_buffer("table_HE", torch.empty(num_heads, entries, dtype=wide), persistent=False)

    def prepare(self) -> None:
        """Scale and table, from the parameters."""
        wide = self.table_HE
        self.scale_H.copy_(self.logit_scale.flatten().to(wide).clamp(max=MOST_SCALE).exp())
        first, _, second = self.cpb_mlp
        hidden_E512 = torch.relu(offsets(self.window_size).to(wide) @ first.weight.to(wide).T + first.bias)
        wide.copy_(MOST_BIAS * torch.sigmoid(second.weight.to(wide) @ hidden_E512.T))

    def forward(self, x: Tensor) -> Tensor:
        """[B, Y, X, C] -> [B, Y, X, C]"""
        o_BYXC = kernels.window_attention(
            self.qkv(x), self.qkv.bias, self.scale_H, self.table_HE, self.window_size, self.shift_size
        )
        return self.proj(o_BYXC)


def offsets(window_size: int) -> Tensor:
    """float64 [(2 W - 1)^2, 2]: d of rows and columns, those of a row of offsets side by side."""
    r_D = torch.arange(1 - window_size, window_size, dtype=torch.float64, device="cpu")
    z_D = LARGEST * r_D / max(1, window_size - 1)
    d_D = z_D.sign() * torch.log2(z_D.abs() + 1) / math.log2(LARGEST)
    return torch.cartesian_prod(d_D, d_D)
