"""Block and stage of a Swin Transformer V2. A block normalises what its branches add (residual post-norm).

    a = x + layer_norm(attention(x); w1, b1)
    y = a + layer_norm(mlp(a); w2, b2)

    stage: x = patch_merging(x) but in the first; then blocks, of which every other shifts its windows

B images, Y, X rows and columns, C channels, channels last; windows as in L2/window_attention. Rounded to the
dtype of x in attention and mlp, after each sum and, where they are no one kernel, after each norm.
Mirrors timm.models.swin_transformer_v2.SwinTransformerV2Block, SwinTransformerV2Stage.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.layer_norm import LayerNorm
from ..L2.mlp import MLP
from ..L2.patch_merging import PatchMerging
from ..L2.window_attention import WindowAttention


class SwinTransformerV2Block(nn.Module):
    def __init__(
        self, dim: int, num_heads: int, window_size: int, shift_size: int = 0, mlp_ratio: float = 4.0
    ) -> None:
        super().__init__()
        self.attn = WindowAttention(dim, window_size, num_heads, shift_size)
        self.norm1 = LayerNorm(dim)
        self.mlp = MLP(dim, int(dim * mlp_ratio), "gelu")
        self.norm2 = LayerNorm(dim)
        self.fuses = Fusion(self, "norm1", "norm2")

    def forward(self, x: Tensor) -> Tensor:
        """[B, Y, X, C] -> [B, Y, X, C]"""
        x = self._added(x, self.attn(x), self.norm1)
        return self._added(x, self.mlp(x), self.norm2)

    def _added(self, x: Tensor, branch: Tensor, norm: LayerNorm) -> Tensor:
        if self.fuses and not x.is_meta:
            return kernels.layer_norm_add(branch, x, norm.weight, norm.bias, norm.eps)
        return x + norm(branch)


class SwinTransformerV2Stage(nn.Module):
    def __init__(
        self,
        dim: int,
        out_dim: int,
        depth: int,
        num_heads: int,
        window_size: int,
        shift_size: int = 0,
        downsample: bool = False,
        mlp_ratio: float = 4.0,
    ) -> None:
        """shift_size: of every other block, the second first. Without downsample, out_dim is dim."""
        super().__init__()
        self.downsample = PatchMerging(dim, out_dim) if downsample else nn.Identity()
        self.blocks = nn.ModuleList(
            SwinTransformerV2Block(out_dim, num_heads, window_size, shift_size if i % 2 else 0, mlp_ratio)
            for i in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, Y, X, dim] -> [B, Y', X', out_dim], half as many rows and columns with downsample"""
        x = self.downsample(x)
        for block in self.blocks:
            x = block(x)
        return x
