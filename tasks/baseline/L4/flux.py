"""FLUX.1: a prompt to features, the velocity of an image's latents given their noise level and the prompt,
latents to an image.

    prompt = t5(ids),  pooled = clip(ids)
    x = embed(latents),  y = embed(prompt);  (y, x) = double_i(x, y) for each i
    z = [y | x];  z = single_i(z) for each i;  v = adaptive_norm(z_image) W^T + b
    image = clamp(decoder(latents / scaling + shift) / 2 + 1/2, 0, 1)

B requests, L tokens of an image (2 x 2 latents each), S of its prompt, C channels, J and P features of the
prompt's encoders, D hidden, K head size; Y, X rows and columns of latents, 8 pixels apart. Parameters and
activations have the dtype of the module; timestep, guidance, the table of rotations and images are float32.
`config` has a section for each part, as diffusers writes it into the folder of that name: `transformer`,
`vae`, `text_encoder` (CLIP) and `text_encoder_2` (T5). Without `vae` there is no decoder, without the text
encoders prompts are features; the configuration of a transformer alone stands for its section.
Mirrors diffusers.FluxPipeline: `forward` is
diffusers.models.transformers.transformer_flux.FluxTransformer2DModel, except that timestep and guidance come
as they are embedded (times 1000, and rounded as the caller wants it), `decode` the decoder of
diffusers.AutoencoderKL with what is done before and after it; `text_encoder` and `text_encoder_2` are called
by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn import flow_matching, latents
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.flow_matching import Schedule
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.prompts import Reader
from fastkernels.nn.text_config import clip_arguments, clip_weights, t5_arguments, t5_weights
from fastkernels.nn.vae_config import decoder_arguments, decoder_weights
from fastkernels.nn.weight_map import WeightMap

from ..L1.diffusion_rope import FluxPosEmbed
from ..L1.linear import Linear
from ..L2.adaptive_norm import AdaLayerNormContinuous
from ..L2.timestep_embedding import CombinedTimestepGuidanceTextProjEmbeddings
from ..L3.diffusion_block import FluxSingleTransformerBlock, FluxTransformerBlock
from ..L3.text_encoder import CLIPTextModel, T5EncoderModel
from ..L3.vae_decoder import Decoder

MLP_RATIO, ROPE_THETA, EPS = 4, 10000.0, 1e-6  # not in the configuration
LATENTS_OF_A_TOKEN = 4  # 2 x 2 neighbours
T5_TOKENS = (
    512  # of a prompt for T5, which has no positions that end; CLIP gets the first ones of a longer text
)
# Of one launch: images; prompts of 512 tokens; images of 1024 x 1024 pixels to decode, of which a map of 256
# channels has 2^30 values, 2 GiB.
DENOISED, ENCODED, DECODED = 8, 8, 4


class FluxPipeline(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        transformer, vae = sections(config)
        reader = ConfigReader(transformer, "transformer." if transformer is not config else "")
        block = block_arguments(reader)
        hidden_size = block["dim"]
        self.in_channels = reader.integer("in_channels")
        self.out_channels = reader.integer("out_channels", default=self.in_channels)
        self.text_features = reader.integer("joint_attention_dim")
        self.pooled_features = reader.integer("pooled_projection_dim")
        self.has_guidance = reader.flag("guidance_embeds")
        told = ConfigReader(config)
        self.schedule = Schedule.of(told.section("scheduler")) if told.has("scheduler") else Schedule()

        self.pos_embed = FluxPosEmbed(ROPE_THETA, axes(reader, hidden_size // block["num_attention_heads"]))
        self.time_text_embed = CombinedTimestepGuidanceTextProjEmbeddings(
            hidden_size, self.pooled_features, self.has_guidance
        )
        self.context_embedder = Linear(self.text_features, hidden_size, bias=True)
        self.x_embedder = Linear(self.in_channels, hidden_size, bias=True)
        double, single = reader.integer("num_layers"), reader.integer("num_single_layers", minimum=0)
        self.transformer_blocks = nn.ModuleList(FluxTransformerBlock(**block) for _ in range(double))
        self.single_transformer_blocks = nn.ModuleList(
            FluxSingleTransformerBlock(**block) for _ in range(single)
        )
        self.norm_out = AdaLayerNormContinuous(hidden_size, EPS)
        self.proj_out = Linear(hidden_size, self.out_channels, bias=True)

        self.weight_map = weight_map(hidden_size).under(reader.prefix)

        self.latent_channels = self.in_channels // LATENTS_OF_A_TOKEN
        self.vae: Decoder | None = None
        if vae is not None:
            vae_reader = ConfigReader(vae, "vae.")
            arguments = decoder_arguments(vae_reader)
            require_tokens(vae_reader, arguments["in_channels"], self.in_channels)
            self.vae = Decoder(**arguments)
            self.latents_scale = vae_reader.number("scaling_factor")
            self.latents_shift = vae_reader.number("shift_factor", default=0.0)
            self.weight_map |= decoder_weights(arguments["block_out_channels"][-1]).under("vae.", "vae.")

        self.readers: tuple[Reader, Reader] | None = None  # of a prompt's text, and of what is pooled
        self.text_encoder: CLIPTextModel | None = None
        self.text_encoder_2: T5EncoderModel | None = None
        if (readers := text_readers(config)) is not None:
            clip, t5 = clip_arguments(readers[0]), t5_arguments(readers[1])
            require_features(readers[0], "hidden_size", self.pooled_features, "pooled_projection_dim")
            require_features(readers[1], "d_model", self.text_features, "joint_attention_dim")
            self.text_encoder, self.text_encoder_2 = CLIPTextModel(**clip), T5EncoderModel(**t5)
            self.readers = (
                Reader("T5", "tokenizer_2", t5["vocab_size"], T5_TOKENS, cuts=False),
                Reader("CLIP", "tokenizer", clip["vocab_size"], clip["max_length"]),
            )
            self.weight_map |= clip_weights(clip).under("text_encoder.", "text_encoder.")
            self.weight_map |= t5_weights(t5).under("text_encoder_2.", "text_encoder_2.")

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        pooled_projections: Tensor,
        timestep: Tensor,
        guidance: Tensor | None,
        img_ids: Tensor,
        txt_ids: Tensor,
    ) -> Tensor:
        """hidden_states [B, L, C], encoder_hidden_states [B, S, J], pooled_projections [B, P], timestep and
        guidance float32 [B] (guidance: None where the model has none), img_ids [L, 3] and txt_ids [S, 3]
        integers -> velocity [B, L, C]"""
        text_len = encoder_hidden_states.shape[1]
        temb_BD = self.time_text_embed(timestep, guidance, pooled_projections)
        cos_sin_TK = self.pos_embed(torch.cat((txt_ids, img_ids)))
        image, text = self.x_embedder(hidden_states), self.context_embedder(encoder_hidden_states)
        for block in self.transformer_blocks:
            text, image = block(image, text, temb_BD, cos_sin_TK)
        joined_BTD = torch.cat((text, image), dim=1)
        for block in self.single_transformer_blocks:
            joined_BTD = block(joined_BTD, temb_BD, cos_sin_TK)
        return self.proj_out(self.norm_out(joined_BTD[:, text_len:], temb_BD))

    def decode(self, latents: Tensor) -> Tensor:
        """latents [B, Y, X, C / 4] -> RGB float32 [B, 3, 8 Y, 8 X] within 0 .. 1; a model with a `vae`"""
        assert self.vae is not None, "the configuration has no section vae"
        wide = torch.promote_types(latents.dtype, torch.float32)
        z = (latents.to(wide) / self.latents_scale + self.latents_shift).to(latents.dtype)
        y_BYXP = self.vae(z).to(wide)
        return (y_BYXP / 2 + 0.5).clamp(0, 1).permute(0, 3, 1, 2).contiguous()

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a denoising step calls, or to decode latents, or a text encoder for prompts of one length."""
        if run == "decode":
            assert batch.images is not None
            yield run, (torch.empty(*batch.images, self.latent_channels),)
        elif run == "forward":
            ((images, rows, columns),) = batch.grids
            latents_BLC = torch.empty(images, rows * columns, self.in_channels)
            text_BSJ = torch.empty(images, batch.text, self.text_features)
            pooled_BP = torch.empty(images, self.pooled_features)
            timestep_B = torch.empty(images, dtype=torch.float32)
            guidance_B = torch.empty(images, dtype=torch.float32) if self.has_guidance else None
            img_ids, txt_ids = (torch.empty(n, 3, dtype=torch.int64) for n in (rows * columns, batch.text))
            yield run, (latents_BLC, text_BSJ, pooled_BP, timestep_B, guidance_B, img_ids, txt_ids)
        else:
            (length,) = set(batch.seq_lens)
            yield run, (torch.empty(len(batch.seq_lens), length, dtype=torch.int64),)

    def latents_of(self, height: int, width: int) -> list[int]:
        """The shape of an image's latents, as tokens."""
        rows, columns = latents.grid(height, width)
        return [rows * columns, self.in_channels]

    def stages(self) -> dict[str, Stage]:
        stages = {"denoise": Stage(most=DENOISED)}
        if self.text_encoder is not None:
            stages |= dict.fromkeys(("text_encoder_2", "text_encoder"), Stage(most=ENCODED))
        if self.vae is not None:
            stages["to_pixels"] = Stage(most=DECODED)
        return stages

    def program(
        self,
        text: Tensor,
        pooled: Tensor,
        height: int,
        width: int,
        steps: int = 28,
        guidance: float = 3.5,
        seed: int = 0,
    ) -> Program:
        """text: features [S, J] or ids [S] for T5; pooled: features [P] or ids for CLIP; height and width in
        pixels, multiples of 16 -> latents as tokens [L, C]"""
        sides = {"text_encoder_2": text, "text_encoder": pooled}
        ids = {part: side.long() for part, side in sides.items() if not side.is_floating_point()}
        made = dict(zip(ids, (yield [Call(part, side) for part, side in ids.items()])))
        text, pooled = (made[part] if part in made else sides[part].to(self.place.dtype) for part in sides)
        rows, columns = grid = latents.grid(height, width)
        noise_LC = latents.noise(self.in_channels, rows, columns, seed, self.place.dtype)
        levels_N = flow_matching.noise_levels(steps, rows * columns, self.schedule)
        state = [noise_LC, torch.zeros((), dtype=torch.int64)]
        scale = torch.tensor(guidance, dtype=torch.float32)
        done = yield Call("denoise", state, text, pooled, levels_N, scale, grid, loop=steps)
        return {"latents": done[0]}

    def finish(self, outputs: Mapping[str, Tensor], height: int, width: int, **_: Any) -> Program:
        """-> image float32 [height, width, 3] within 0 .. 1; without a decoder the latents"""
        if self.vae is None:
            return {"image": outputs["latents"]}
        tokens_LC = outputs["latents"].to(self.place.dtype)
        image = yield Call("to_pixels", tokens_LC, latents.grid(height, width))
        return {"image": image.permute(1, 2, 0)}

    def denoise(
        self,
        state: list[Tensor],
        text: Tensor,
        pooled: Tensor,
        levels: Tensor,
        guidance: Tensor,
        grid: list[int],
    ) -> list[Tensor]:
        """One step of a batch. state: latents [B, L, C] and how many steps they have behind them, int64 [B];
        text [B, S, J], pooled [B, P], levels [B, N + 1] and guidance [B] float32, grid: rows and columns of
        tokens -> the next state"""
        x_BLC, done_B = state
        level_B, next_level_B = (levels.gather(1, at[:, None])[:, 0] for at in (done_B, done_B + 1))
        timestep_B = flow_matching.timesteps(level_B, x_BLC.dtype)
        scale_B = flow_matching.guidance(guidance, x_BLC.dtype) if self.has_guidance else None
        rows, columns = grid
        img_ids = latents.grid_ids(rows, columns, x_BLC.device)
        txt_ids = torch.zeros(text.shape[1], 3, dtype=torch.int64, device=x_BLC.device)
        velocity_BLC = self(x_BLC, text, pooled, timestep_B, scale_B, img_ids, txt_ids)
        return [flow_matching.euler_step(x_BLC, velocity_BLC, level_B, next_level_B), done_B + 1]

    def to_pixels(self, tokens: Tensor, grid: list[int]) -> Tensor:
        """latents as tokens [B, L, C] -> RGB float32 [B, 3, height, width]"""
        return self.decode(latents.unpack(tokens, *grid))


def sections(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """The configurations of the transformer and of the autoencoder (None: there is none)."""
    if "transformer" not in config:
        return config, None
    return config["transformer"], config.get("vae")


def text_readers(config: Mapping[str, Any]) -> tuple[ConfigReader, ConfigReader] | None:
    """Of the sections of CLIP and T5; None where there are none. A UsageError where one lacks the other."""
    reader = ConfigReader(config)
    names = ("text_encoder", "text_encoder_2")
    there = [name for name in names if "transformer" in config and reader.has(name)]
    if len(there) == 1:
        (lacking,) = set(names) - set(there)
        raise reader.error(lacking, f"is missing, but {there[0]} is there: a prompt needs both or neither")
    return (reader.section(names[0]), reader.section(names[1])) if there else None


def require_features(encoder: ConfigReader, key: str, needed: int, wanted_by: str) -> None:
    """UsageError unless a text encoder gives as many features as the transformer takes."""
    if (found := encoder.integer(key)) != needed:
        raise encoder.error(key, f"{found}, but the transformer's {wanted_by} is {needed}")


def require_tokens(vae: ConfigReader, latent_channels: int, in_channels: int) -> None:
    """UsageError unless the autoencoder's latents are those of the transformer's tokens."""
    if LATENTS_OF_A_TOKEN * latent_channels != in_channels:
        raise vae.error(
            "latent_channels",
            f"{latent_channels}: a token is {LATENTS_OF_A_TOKEN} latents, so the transformer's in_channels, "
            f"{in_channels}, ask for {in_channels / LATENTS_OF_A_TOKEN:g}",
        )


def block_arguments(config: ConfigReader) -> dict[str, Any]:
    """What every block is made with; a UsageError names the key that is wrong."""
    num_heads, head_size = config.integer("num_attention_heads"), config.integer("attention_head_dim")
    if (patch_size := config.integer("patch_size", default=1)) != 1:
        raise config.error("patch_size", f"{patch_size}: only packed latents are supported, patch_size 1")
    hidden_size = num_heads * head_size
    return {
        "dim": hidden_size,
        "intermediate_size": MLP_RATIO * hidden_size,
        "num_attention_heads": num_heads,
        "eps": EPS,
    }


def axes(config: ConfigReader, head_size: int) -> list[int]:
    """Features of a head that each coordinate of a token turns."""
    found = config.config.get("axes_dims_rope")
    if not isinstance(found, (list, tuple)) or len(found) != 3 or any(dim % 2 for dim in found):
        raise config.error("axes_dims_rope", f"must be three even numbers, not {found!r}")
    if sum(found) != head_size:
        raise config.error("axes_dims_rope", f"adds up to {sum(found)}, attention_head_dim is {head_size}")
    return list(found)


def weight_map(hidden_size: int) -> WeightMap:
    """Names of diffusers' file: what it calls q, k and v fills one matrix of each stream."""
    double, single = "transformer_blocks.*", "single_transformer_blocks.*"
    same = [
        "x_embedder.*",
        "context_embedder.*",
        "proj_out.*",
        "norm_out.linear.*",
        "time_text_embed.*.linear_1.*",
        "time_text_embed.*.linear_2.*",
        f"{double}.norm1.linear.*",
        f"{double}.norm1_context.linear.*",
        f"{single}.norm.linear.*",
        *(f"{double}.attn.{norm}.weight" for norm in ("norm_q", "norm_k", "norm_added_q", "norm_added_k")),
        *(f"{single}.attn.{norm}.weight" for norm in ("norm_q", "norm_k")),
    ]
    names = {name: name for name in same} | {
        f"{double}.attn.to_out.0.*": f"{double}.attn.to_out.linear.*",
        f"{double}.attn.to_add_out.*": f"{double}.attn.to_add_out.linear.*",
        f"{double}.ff.net.0.proj.*": f"{double}.ff.fc1.linear.*",
        f"{double}.ff.net.2.*": f"{double}.ff.fc2.linear.*",
        f"{double}.ff_context.net.0.proj.*": f"{double}.ff_context.fc1.linear.*",
        f"{double}.ff_context.net.2.*": f"{double}.ff_context.fc2.linear.*",
        f"{single}.proj_mlp.*": f"{single}.proj_mlp.linear.*",
        f"{single}.proj_out.*": f"{single}.proj_out.linear.*",
    }

    def parts(block: str, sources: tuple[str, ...]) -> dict[str, int]:
        return {f"{block}.attn.{source}.*": hidden_size for source in sources}

    own, added = ("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj")
    packed = {
        f"{double}.attn.qkv_proj.linear.*": parts(double, own),
        f"{double}.attn.add_qkv_proj.linear.*": parts(double, added),
        f"{single}.attn.qkv_proj.linear.*": parts(single, own),
    }
    return WeightMap(names, packed)
