"""What conditions every layer of a diffusion model: a vector from the timestep and the prompt, or from the
timestep and what is observed; or tokens that know their timestep.

    mlp(x) = silu(x W1^T + b1) W2^T + b2
    temb = mlp_t(sin(t)) + mlp_g(sin(g)) + mlp_p(p)        sin(v): sinusoidal features of v (L1/sinusoidal)
    film        y = mish([mlp(sin(t)) | o]) W^T + b        here with mish within mlp, too
    actions     y = mlp([x Wx^T + bx | s])
    text_time   temb = mlp_t(sin(t)) + mlp_p([p | sin(z_1) | .. | sin(z_6)])

B requests, F sinusoidal features, P pooled features of a prompt, D hidden; t timestep (0 .. 1000), g guidance
times 1000, absent in models without it. film: O features of an observation o, M outputs: scale and shift of
each channel of every block, one product for all of them. actions: A noisy actions x of each request, X values
of one; s are D features of their timestep. text_time: z are an image's sizes before it was cut to a batch of
one size, where it was cut, and its sizes then. t, g, s and z are float32; features are rounded to the dtype
of p, o or x. Rounded to it after each product, activation and sum.
Mirrors diffusers.models.embeddings.TimestepEmbedding and CombinedTimestepGuidanceTextProjEmbeddings (without
guidance: CombinedTimestepTextProjEmbeddings); film: `diffusion_step_encoder` and every `cond_encoder` of
diffusion_policy_3d.model.diffusion.conditional_unet1d.ConditionalUnet1D; actions:
transformers.models.pi0.modeling_pi0.PI0ActionTimeEmbedding behind its features of the timestep and without
the token of the state; text_time: what
diffusers.models.unets.unet_2d_condition.UNet2DConditionModel makes with addition_embed_type text_time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.activation import Mish, SiLU
from ..L1.linear import Linear
from ..L1.sinusoidal import SinusoidalPosEmb, Timesteps

SINUSOIDAL_FEATURES = 256
SIZES = 6  # of an image: height and width as it was, top and left of the cut, height and width of the cut


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


class TextTimeEmbedding(nn.Module):
    def __init__(
        self,
        num_time_features: int,
        addition_time_embed_dim: int,
        projection_class_embeddings_input_dim: int,
        time_embed_dim: int,
    ) -> None:
        super().__init__()
        self.time_proj, self.add_time_proj = Timesteps(num_time_features), Timesteps(addition_time_embed_dim)
        self.timestep_embedder = TimestepEmbedding(num_time_features, time_embed_dim)
        self.text_embedder = TimestepEmbedding(projection_class_embeddings_input_dim, time_embed_dim)

    def forward(self, timestep: Tensor, text_embeds: Tensor, time_ids: Tensor) -> Tensor:
        """timestep float32 [B], text_embeds [B, P], time_ids float32 [B, 6] -> [B, D]"""
        features_BF = self.time_proj(timestep).to(text_embeds.dtype)
        sizes_BG = self.add_time_proj(time_ids.flatten()).view(len(time_ids), -1).to(text_embeds.dtype)
        added_BD = self.text_embedder(torch.cat((text_embeds, sizes_BG), dim=-1))
        return self.timestep_embedder(features_BF) + added_BD


class FilmEncoder(nn.Module):
    def __init__(self, diffusion_step_embed_dim: int, global_cond_dim: int, film_dim: int) -> None:
        super().__init__()
        dim = diffusion_step_embed_dim
        self.time_proj = SinusoidalPosEmb(dim)
        self.linear_1 = Linear(dim, 4 * dim, bias=True)
        self.act = Mish()
        self.linear_2 = Linear(4 * dim, dim, bias=True)
        self.cond_encoder = Linear(dim + global_cond_dim, film_dim, bias=True)

    def forward(self, timestep: Tensor, global_cond: Tensor) -> Tensor:
        """timestep float32 [B], global_cond [B, O] -> [B, M]"""
        features_BF = self.time_proj(timestep).to(global_cond.dtype)
        step_BF = self.linear_2(self.act(self.linear_1(features_BF)))
        return self.cond_encoder(self.act(torch.cat((step_BF, global_cond), -1)))


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
