"""A step to half the resolution of a feature map: 2 x 2 pixels side by side, projected, normalised.

    y[b, r, c] = layer_norm([x[2r, 2c] | x[2r + 1, 2c] | x[2r, 2c + 1] | x[2r + 1, 2c + 1]] W^T)

B images, Y, X rows and columns, C channels, channels last; W [2C, 4C]. Of an odd map the last row or column
has zeros beside it. Rounded to the dtype of x after the product and after the norm.
Mirrors timm.models.swin_transformer_v2.PatchMerging.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear


class PatchMerging(nn.Module):
    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.reduction = Linear(4 * dim, out_dim)
        self.norm = LayerNorm(out_dim)

    def forward(self, x: Tensor) -> Tensor:
        """[B, Y, X, C] -> [B, ceil(Y / 2), ceil(X / 2), out_dim]"""
        _, rows, columns, _ = x.shape
        if rows % 2 or columns % 2:
            x = functional.pad(x, (0, 0, 0, columns % 2, 0, rows % 2))
        parts_BYVXUC = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))
        return self.norm(self.reduction(parts_BYVXUC.permute(0, 1, 3, 4, 2, 5).flatten(3)))
