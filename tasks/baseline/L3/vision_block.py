"""One pre-norm layer of a vision transformer over packed images.

    a = x + attention(layer_norm(x; w1, b1))
    y = a + mlp(layer_norm(a; w2, b2))
    layer_scale    a = x + l1 * attention(..),  y = a + l2 * gated_mlp(..)        of the same norms
    gated          a = x + attention(rms_norm(x; w1)),  y = a + gated_mlp(rms_norm(a; w2))

T tokens of B images or videos, D hidden. Attention has rotary positions, on two axes in the variants
layer_scale, axial, gated and pixel, on three in the variant video; pixel: B images of L tokens. Rounded to
the dtype of x after each sum.
Mirrors vllm.model_executor.models.siglip2.Siglip2EncoderLayer (also transformers' Siglip2EncoderLayer, timm's
vision_transformer.Block), transformers.models.dinov3_vit.modeling_dinov3_vit.DINOv3ViTLayer (timm:
eva.EvaBlock), transformers.models.vjepa2.modeling_vjepa2.VJEPA2Layer,
transformers.models.qwen2_vl.modeling_qwen2_vl.Qwen2VLVisionBlock,
transformers.models.qwen2_5_omni.modeling_qwen2_5_omni.Qwen2_5OmniVisionBlock and
vae.AttentionBlock of open-oasis.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels.nn.fusion import Fusion, add_and_norm

from ..L1.layer_norm import LayerNorm
from ..L1.layer_scale import LayerScale
from ..L1.rms_norm import RMSNorm
from ..L2.diffusion_attention import SpatialAxialAttention
from ..L2.encoder_attention import EncoderAttention
from ..L2.gated_mlp import GatedMLP
from ..L2.mlp import MLP
from ..L2.vision_attention import RotaryAttention


class VisionBlock(nn.Module):
    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, hidden_act: str, layer_norm_eps: float
    ) -> None:
        super().__init__()
        self.layer_norm1 = LayerNorm(hidden_size, layer_norm_eps)
        self.self_attn = EncoderAttention(hidden_size, num_heads)
        self.layer_norm2 = LayerNorm(hidden_size, layer_norm_eps)
        self.mlp = MLP(hidden_size, intermediate_size, hidden_act)
        self.fuses = Fusion(self, "layer_norm2")

    def forward(self, hidden_states: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        """hidden_states [T, D], cu_seqlens int32 [B+1] -> [T, D]"""
        attended_TD = self.self_attn(self.layer_norm1(hidden_states), cu_seqlens, max_seqlen)
        normed_TD, a_TD = add_and_norm(attended_TD, hidden_states, self.layer_norm2, self.fuses)
        return a_TD + self.mlp(normed_TD)


class LayerScaleBlock(nn.Module):
    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, hidden_act: str, layer_norm_eps: float
    ) -> None:
        super().__init__()
        self.norm1 = LayerNorm(hidden_size, layer_norm_eps)
        self.attention = RotaryAttention(hidden_size, num_heads)
        self.layer_scale1 = LayerScale(hidden_size)
        self.norm2 = LayerNorm(hidden_size, layer_norm_eps)
        self.mlp = GatedMLP(hidden_size, intermediate_size, hidden_act, bias=True)
        self.layer_scale2 = LayerScale(hidden_size)
        self.fuses = Fusion(self, "layer_scale1", "norm2")

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
    ) -> Tensor:
        """hidden_states [T, D], position_embeddings [P, K], positions int64 [T], cu_seqlens int32 [B+1] ->
        [T, D]"""
        where = (position_embeddings, positions, cu_seqlens, max_seqlen)
        attended_TD = self.attention(self.norm1(hidden_states), *where)
        normed_TD, a_TD = add_and_norm(attended_TD, hidden_states, self.norm2, self.fuses, self.layer_scale1)
        return self.layer_scale2(self.mlp(normed_TD), a_TD)


class VideoBlock(nn.Module):
    rope = "video"

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        hidden_act: str,
        layer_norm_eps: float,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__()
        self.norm1 = LayerNorm(hidden_size, layer_norm_eps)
        self.attention = RotaryAttention(hidden_size, num_heads, qkv_bias, self.rope)
        self.norm2 = LayerNorm(hidden_size, layer_norm_eps)
        self.mlp = MLP(hidden_size, intermediate_size, hidden_act)
        self.fuses = Fusion(self, "norm2")

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor,
        position_mask: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
    ) -> Tensor:
        """hidden_states [T, D], position_embeddings [P, 2 K], in the variant axial [P, K], position_mask
        int64 [T], each token's place, cu_seqlens int32 [B+1] -> [T, D]"""
        where = (position_embeddings, position_mask, cu_seqlens, max_seqlen)
        attended_TD = self.attention(self.norm1(hidden_states), *where)
        normed_TD, a_TD = add_and_norm(attended_TD, hidden_states, self.norm2, self.fuses)
        return a_TD + self.mlp(normed_TD)


class AxialBlock(VideoBlock):
    rope = "axial"


class GatedBlock(nn.Module):
    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, hidden_act: str, rms_norm_eps: float
    ) -> None:
        super().__init__()
        self.norm1 = RMSNorm(hidden_size, rms_norm_eps)
        self.attention = RotaryAttention(hidden_size, num_heads, qkv_bias=True)
        self.norm2 = RMSNorm(hidden_size, rms_norm_eps)
        self.mlp = GatedMLP(hidden_size, intermediate_size, hidden_act, bias=True)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
    ) -> Tensor:
        """hidden_states [T, D], position_embeddings [P, K], positions int64 [T], cu_seqlens int32 [B+1] ->
        [T, D]"""
        where = (position_embeddings, positions, cu_seqlens, max_seqlen)
        attended_TD = self.attention(self.norm1(hidden_states), *where)
        normed_TD, a_TD = self.norm2(attended_TD, hidden_states)
        return a_TD + self.mlp(normed_TD)


class PixelBlock(nn.Module):
    def __init__(self, dim: int, intermediate_size: int, num_heads: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim, eps)
        self.attn = SpatialAxialAttention(dim, num_heads, qkv_bias=True)
        self.norm2 = LayerNorm(dim, eps)
        self.mlp = MLP(dim, intermediate_size, "gelu")
        self.fuses = Fusion(self, "norm2")

    def forward(self, x: Tensor, rotary_emb: Tensor) -> Tensor:
        """x [B, L, D], rotary_emb [L, K] -> [B, L, D]"""
        attended_BLD = self.attn(self.norm1(x), rotary_emb)
        normed_BLD, a_BLD = add_and_norm(attended_BLD, x, self.norm2, self.fuses)
        return a_BLD + self.mlp(normed_BLD)
