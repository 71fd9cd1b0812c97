"""A step to a lower resolution: neighbours side by side, projected.

    default    y[b, r, c] = layer_norm([x[2r, 2c] | x[2r + 1, 2c] | x[2r, 2c + 1] | x[2r + 1, 2c + 1]] W^T)
    packed     y[t] = gelu([z[n t] | .. | z[n t + n - 1]] W1^T + b1) W2^T + b2,   z = layer_norm(x), or with
               use_postshuffle_norm [z[n t] | ..] = layer_norm([x[n t] | ..]), of a block's n C features

B images, Y, X rows and columns, C channels, channels last; W [2C, 4C]. Of an odd map the last row or column
has zeros beside it. Rounded to the dtype of x after the product and after the norm. Packed: T patches of C
features, whose blocks of n = m x m lie together; W1 [n C, n C], W2 [dim, n C]. Rounded after the norm, the
activation, the second product and, where fc1 and the activation are not one kernel, the first. packed_rms:
the same with z = rms_norm(x).
Mirrors timm.models.swin_transformer_v2.PatchMerging and
transformers.models.qwen2_vl.modeling_qwen2_vl.PatchMerger (vLLM: qwen2_vl.Qwen2VisionPatchMerger), and
transformers.models.qwen3_vl.modeling_qwen3_vl.Qwen3VLVisionPatchMerger (qwen3_vl.Qwen3_VisionPatchMerger),
and transformers.models.qwen2_5_omni.modeling_qwen2_5_omni.Qwen2_5OmniPatchMerger.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.activation import GELU
from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L1.rms_norm import RMSNorm


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


class PackedPatchMerger(nn.Module):
    def __init__(
        self,
        dim: int,
        context_dim: int,
        spatial_merge_size: int,
        layer_norm_eps: float,
        use_postshuffle_norm: bool = False,
    ) -> None:
        super().__init__()
        self.hidden_size = context_dim * spatial_merge_size**2
        self.use_postshuffle_norm = use_postshuffle_norm
        self.ln_q = LayerNorm(self.hidden_size if use_postshuffle_norm else context_dim, layer_norm_eps)
        self.fc1 = Linear(self.hidden_size, self.hidden_size, bias=True)
        self.activation_fn = GELU()
        self.fc2 = Linear(self.hidden_size, dim, bias=True)
        self.fuses = Fusion(self, "fc1", "activation_fn")

    def forward(self, x: Tensor) -> Tensor:
        """[T, C], the patches of a block side by side -> [T / n, dim]"""
        if self.use_postshuffle_norm:
            blocks_BH = self.ln_q(x.view(-1, self.hidden_size))
        else:
            blocks_BH = self.ln_q(x).view(-1, self.hidden_size)
        if self.fuses and not x.is_meta:
            return self.fc2(kernels.linear_activation(blocks_BH, self.fc1.weight, self.fc1.bias, "gelu"))
        return self.fc2(self.activation_fn(self.fc1(blocks_BH)))


class PackedRMSPatchMerger(PackedPatchMerger):
    def __init__(self, dim: int, context_dim: int, spatial_merge_size: int, rms_norm_eps: float) -> None:
        super().__init__(dim, context_dim, spatial_merge_size, rms_norm_eps)
        self.ln_q = RMSNorm(context_dim, rms_norm_eps)
