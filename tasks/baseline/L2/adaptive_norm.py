"""Layer normalisation whose scale and shift are a linear function of the conditioning.

    [m_1 | m_2 | ...] = silu(temb) W^T + b
    y = layer_norm(x) * (1 + scale) + shift        layer_norm without weights

    zero          m = shift, scale, gate, shift', scale', gate';  also returns gate, shift', scale', gate'
    single        m = shift, scale, gate;                         also returns gate
    continuous    m = scale, shift: in this order

B requests of L tokens each, D hidden; W [n D, D] for n parts. The product is rounded to the dtype of x;
normalisation, scale and shift are computed in at least float32 and rounded once.
Mirrors diffusers.models.normalization.AdaLayerNormZero, AdaLayerNormZeroSingle and AdaLayerNormContinuous.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.activation import SiLU
from ..L1.layer_norm import ModulatedLayerNorm
from ..L1.linear import Linear


class AdaLayerNormZero(nn.Module):
    def __init__(self, embedding_dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.silu = SiLU()
        self.linear = Linear(embedding_dim, 6 * embedding_dim, bias=True)
        self.norm = ModulatedLayerNorm(eps)

    def forward(self, x: Tensor, emb: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """x [B, L, D], emb [B, D] -> y [B, L, D], then gate, shift', scale', gate' [B, D] each"""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.linear(self.silu(emb)).chunk(6, dim=-1)
        return self.norm(x, scale, shift), gate, mlp_shift, mlp_scale, mlp_gate


class AdaLayerNormZeroSingle(nn.Module):
    def __init__(self, embedding_dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.silu = SiLU()
        self.linear = Linear(embedding_dim, 3 * embedding_dim, bias=True)
        self.norm = ModulatedLayerNorm(eps)

    def forward(self, x: Tensor, emb: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, L, D], emb [B, D] -> y [B, L, D], gate [B, D]"""
        shift, scale, gate = self.linear(self.silu(emb)).chunk(3, dim=-1)
        return self.norm(x, scale, shift), gate


class AdaLayerNormContinuous(nn.Module):
    def __init__(self, embedding_dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.silu = SiLU()
        self.linear = Linear(embedding_dim, 2 * embedding_dim, bias=True)
        self.norm = ModulatedLayerNorm(eps)

    def forward(self, x: Tensor, conditioning_embedding: Tensor) -> Tensor:
        """x [B, L, D], conditioning_embedding [B, D] -> [B, L, D]"""
        scale, shift = self.linear(self.silu(conditioning_embedding)).chunk(2, dim=-1)
        return self.norm(x, scale, shift)
