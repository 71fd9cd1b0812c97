"""What conditions every layer of a diffusion transformer: a vector from the timestep and the prompt.

    mlp(x) = silu(x W1^T + b1) W2^T + b2
    temb = mlp_t(sin(t)) + mlp_g(sin(g)) + mlp_p(p)        sin(v): sinusoidal features of v (L1/sinusoidal)

B requests, F sinusoidal features, P pooled features of a prompt, D hidden; t timestep (0 .. 1000), g guidance
times 1000, absent in models without it. t and g are float32; their features are rounded to the dtype of p.
Rounded to it after each product, activation and sum.
Mirrors diffusers.models.embeddings.TimestepEmbedding and CombinedTimestepGuidanceTextProjEmbeddings (without
guidance: CombinedTimestepTextProjEmbeddings).
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.activation import SiLU
from ..L1.linear import Linear
from ..L1.sinusoidal import Timesteps

SINUSOIDAL_FEATURES = 256


class TimestepEmbedding(nn.Module):
    def __init__(self, in_channels: int, time_embed_dim: int) -> None:
        super().__init__()
        self.linear_1 = Linear(in_channels, time_embed_dim, bias=True)
        self.act = SiLU()
        self.linear_2 = Linear(time_embed_dim, time_embed_dim, bias=True)

    def forward(self, sample: Tensor) -> Tensor:
        """[B, F] -> [B, D]"""
        return self.linear_2(self.act(self.linear_1(sample)))


class CombinedTimestepGuidanceTextProjEmbeddings(nn.Module):
    guidance_embedder: TimestepEmbedding | None

    def __init__(self, embedding_dim: int, pooled_projection_dim: int, has_guidance: bool = True) -> None:
        super().__init__()
        self.time_proj = Timesteps(SINUSOIDAL_FEATURES)
        self.timestep_embedder = TimestepEmbedding(SINUSOIDAL_FEATURES, embedding_dim)
        self.guidance_embedder = (
            TimestepEmbedding(SINUSOIDAL_FEATURES, embedding_dim) if has_guidance else None
        )
        self.text_embedder = TimestepEmbedding(pooled_projection_dim, embedding_dim)

    def forward(self, timestep: Tensor, guidance: Tensor | None, pooled_projection: Tensor) -> Tensor:
        """timestep and guidance float32 [B], pooled_projection [B, P] -> [B, D]"""
        temb_BD = self.timestep_embedder(self.time_proj(timestep).to(pooled_projection.dtype))
        if self.guidance_embedder is not None:
            features_BF = self.time_proj(guidance).to(pooled_projection.dtype)
            temb_BD = temb_BD + self.guidance_embedder(features_BF)
        return temb_BD + self.text_embedder(pooled_projection)
