"""What conditions every layer of a diffusion transformer: a vector from the timestep and the prompt, or
tokens that know their timestep.

    mlp(x) = silu(x W1^T + b1) W2^T + b2
    temb = mlp_t(sin(t)) + mlp_g(sin(g)) + mlp_p(p)        sin(v): sinusoidal features of v (L1/sinusoidal)
    actions     y = silu([x Wx^T + bx | s] W1^T + b1) W2^T + b2

B requests, F sinusoidal features, P pooled features of a prompt, D hidden; t timestep (0 .. 1000), g guidance
times 1000, absent in models without it. t and g are float32; their features are rounded to the dtype of p.
Actions: A noisy actions x of each request, X values of one; s are D features of their timestep, float32,
rounded to the dtype of x.
Rounded to it after each product, activation and sum.
Mirrors diffusers.models.embeddings.TimestepEmbedding and CombinedTimestepGuidanceTextProjEmbeddings (without
guidance: CombinedTimestepTextProjEmbeddings), and
transformers.models.pi0.modeling_pi0.PI0ActionTimeEmbedding behind its features of the timestep and without
the token of the state.
"""

from __future__ import annotations

import torch
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


class ActionTimeEmbedding(nn.Module):
    def __init__(self, action_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.action_in_proj = Linear(action_dim, hidden_size, bias=True)
        self.action_time_mlp_in = Linear(2 * hidden_size, hidden_size, bias=True)
        self.act = SiLU()
        self.action_time_mlp_out = Linear(hidden_size, hidden_size, bias=True)

    def forward(self, noise: Tensor, time_embeds: Tensor) -> Tensor:
        """noise [B, A, X], time_embeds float32 [B, D] -> [B, A, D]"""
        action_BAD = self.action_in_proj(noise)
        time_BAD = time_embeds.to(noise.dtype)[:, None].expand_as(action_BAD)
        joined = torch.cat((action_BAD, time_BAD), dim=-1)
        return self.action_time_mlp_out(self.act(self.action_time_mlp_in(joined)))
