"""Stable Diffusion XL: a prompt to features, the noise in an image's latents given the timestep and the
prompt, latents to an image.

    h, (h', pooled) = clip(ids), clip_2(ids_2),  text = [h | h']        features before the last layer of each
    temb = time_text(t, pooled, sizes),  x = conv_in(latents)
    x = layer_i(x, temb, text),  s_i = x          of each level down; then a convolution to half its sides
    x = resnet(layer(x, temb, text), temb)        in the middle
    x = layer_j(x, temb, text, s_i)               the last s_i first; behind each level but the last x = up(x)
    noise = conv_out(silu(group_norm(x)))
    image = clamp(decoder(post_quant(latents / scaling)) / 2 + 1/2, 0, 1)

B images (with guidance twice: without and with their prompt), Y, X rows and columns of latents, 8 pixels
apart, C channels of them, N tokens of J features of a prompt, P pooled ones. A level has layers_per_block
layers on the way down, one more on the way up; what is kept has the output of conv_in and of the convolutions
between levels in it. Parameters and activations have the dtype of the module; timestep, sizes and images are
float32.
`config` has a section for each part, as diffusers writes it into the folder of that name: `unet`, `vae`,
`text_encoder` and `text_encoder_2` (CLIP both). Without `vae` there is no decoder, without the text encoders
prompts are features; the configuration of a U-Net alone stands for its section.
Mirrors diffusers.StableDiffusionXLPipeline: `forward` is
diffusers.models.unets.unet_2d_condition.UNet2DConditionModel, channels last, `decode` the decoder of
diffusers.AutoencoderKL with what is done before and after it; `text_encoder` and `text_encoder_2` are called
by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn import euler
from fastkernels.nn.batching import described, require_values
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, RequestError, Stage
from fastkernels.nn.prompts import Reader
from fastkernels.nn.text_config import clip_arguments, clip_weights
from fastkernels.nn.vae_config import decoder_arguments, decoder_weights
from fastkernels.nn.weight_map import Source, WeightMap

from ..L1.conv import Conv2d
from ..L1.group_norm import GroupNorm
from ..L2.resnet_block import TimedResnetBlock2D, Upsample2D
from ..L2.timestep_embedding import SIZES, TextTimeEmbedding
from ..L3.text_encoder import CLIPTextFeatures, CLIPTextModelWithProjection
from ..L3.unet_layer import EPS, UNetLayer2D
from ..L3.vae_decoder import Decoder

TIME_WIDTHS = 4  # of the first level's channels: features of a timestep behind its MLP
LATENT_PIXELS = 8  # of a side
MOST_SIDE, MOST_SEED, MOST_GUIDANCE = 4096, 2**64 - 1, 65
# Of one launch: images, each of them twice; prompts; images of 1024 x 1024 pixels to decode.
DENOISED, ENCODED, DECODED = 8, 8, 4


class StableDiffusionXLPipeline(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        told = ConfigReader(config)
        unet = told.section("unet") if told.has("unet") else told
        is_alone = unet is told
        sizes = UNetSizes.of(unet)
        self.schedule = euler.Schedule.of(told.section("scheduler"))
        self.in_channels, self.text_features = sizes.in_channels, sizes.text_features
        self.pooled_features = sizes.pooled_inputs - SIZES * sizes.size_features
        self.side_multiple = LATENT_PIXELS * 2 ** (len(sizes.channels) - 1)

        first, last = sizes.channels[0], sizes.channels[-1]
        temb = sizes.temb_channels
        self.time_text = TextTimeEmbedding(first, sizes.size_features, sizes.pooled_inputs, temb)
        self.conv_in = Conv2d(self.in_channels, first, 3, padding=1)
        self.down_layers = nn.ModuleList(nn.ModuleList(sizes.layers(*level)) for level in sizes.down())
        self.downsamplers = nn.ModuleList(Conv2d(c, c, 3, stride=2, padding=1) for c in sizes.channels[:-1])
        (self.mid_layer,) = sizes.layers(len(sizes.channels) - 1, [(last, last)])
        self.mid_resnet = TimedResnetBlock2D(last, last, temb, sizes.groups, EPS)
        self.up_layers = nn.ModuleList(nn.ModuleList(sizes.layers(*level)) for level in sizes.up())
        self.upsamplers = nn.ModuleList(Upsample2D(c) for c in sizes.channels[:0:-1])
        self.conv_norm_out = GroupNorm(sizes.groups, first, EPS, "silu")
        self.conv_out = Conv2d(first, self.in_channels, 3, padding=1)
        self.weight_map = weight_map(sizes).under("" if is_alone else unet.prefix)

        self.vae: Decoder | None = None
        self.readers: tuple[Reader, Reader] | None = None  # of a prompt's text, and of what is pooled, too
        self.text_encoder: CLIPTextFeatures | None = None
        self.text_encoder_2: CLIPTextModelWithProjection | None = None
        if not is_alone and told.has("vae"):
            self._add_decoder(told.section("vae"))
        if not is_alone and (readers := text_readers(told)) is not None:
            self._add_text_encoders(*readers)

    def _add_decoder(self, vae: ConfigReader) -> None:
        arguments = decoder_arguments(vae, post_quant_conv=True)
        if (latents := arguments["in_channels"]) != self.in_channels:
            raise vae.error(
                "latent_channels", f"{latents}, but the U-Net's in_channels are {self.in_channels}"
            )
        vae.refuse(["shift_factor"])
        self.scaling_factor, self.overflows = vae.number("scaling_factor"), vae.flag("force_upcast", True)
        self.post_quant_conv = Conv2d(latents, latents, 1)
        self.vae = Decoder(**arguments)
        self.weight_map |= decoder_weights(arguments["block_out_channels"][-1]).under("vae.", "vae.")
        self.weight_map |= WeightMap({"vae.post_quant_conv.*": "post_quant_conv.*"})

    def _add_text_encoders(self, first: ConfigReader, second: ConfigReader) -> None:
        clip, clip_2 = clip_arguments(first), clip_arguments(second)
        projection_dim = second.integer("projection_dim")
        if (found := clip["hidden_size"] + clip_2["hidden_size"]) != self.text_features:
            raise second.error(
                "hidden_size",
                f"{clip_2['hidden_size']} and the {clip['hidden_size']} of text_encoder are {found}, but the "
                f"U-Net's cross_attention_dim is {self.text_features}",
            )
        if projection_dim != self.pooled_features:
            raise second.error(
                "projection_dim", f"{projection_dim}, but the U-Net takes {self.pooled_features}"
            )
        # Nothing reads the first one's last layer, nor the end of a prompt.
        layers = clip["num_layers"] - 1
        if layers < 1:
            raise first.error("num_hidden_layers", "must be at least 2: the last layer is left out")
        read = {name: size for name, size in clip.items() if name != "end_id"} | {"num_layers": layers}
        self.text_encoder = CLIPTextFeatures(**read)
        self.text_encoder_2 = CLIPTextModelWithProjection(**clip_2, projection_dim=projection_dim)
        self.readers = (
            Reader("the first CLIP", "tokenizer", clip["vocab_size"], clip["max_length"]),
            Reader("the second CLIP", "tokenizer_2", clip_2["vocab_size"], clip_2["max_length"]),
        )
        unread = (f"encoder.layers.{layers}.**", "final_layer_norm.*")
        weights = clip_weights(clip, unread), clip_weights(clip_2)
        for part, of_part in zip(("text_encoder.", "text_encoder_2."), weights):
            self.weight_map |= of_part.under(part, part)
        projection = "text_encoder_2.text_projection.weight"  # in the file it lies beside the encoder
        self.weight_map |= WeightMap({projection: projection})

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        text_embeds: Tensor,
        time_ids: Tensor,
    ) -> Tensor:
        """sample [B, Y, X, C], timestep float32 [B], encoder_hidden_states [B, N, J], text_embeds [B, P],
        time_ids float32 [B, 6] -> noise [B, Y, X, C]"""
        text, temb_BD = encoder_hidden_states, self.time_text(timestep, text_embeds, time_ids)
        x = self.conv_in(sample)
        kept = [x]
        for level, layers in enumerate(self.down_layers):
            for layer in layers:
                x = layer(x, temb_BD, text)
                kept.append(x)
            if level < len(self.downsamplers):
                x = self.downsamplers[level](x)
                kept.append(x)
        x = self.mid_resnet(self.mid_layer(x, temb_BD, text), temb_BD)
        for level, layers in enumerate(self.up_layers):
            for layer in layers:
                x = layer(x, temb_BD, text, kept.pop())
            if level < len(self.upsamplers):
                x = self.upsamplers[level](x)
        return self.conv_out(self.conv_norm_out(x))

    def decode(self, latents: Tensor) -> Tensor:
        """latents [B, Y, X, C] -> RGB float32 [B, 3, 8 Y, 8 X] within 0 .. 1; a model with a `vae`"""
        assert self.vae is not None, "the configuration has no section vae"
        wide = torch.promote_types(latents.dtype, torch.float32)
        z = (latents.to(wide) / self.scaling_factor).to(latents.dtype)
        y_BYXP = self.vae(self.post_quant_conv(z)).to(wide)
        return (y_BYXP / 2 + 0.5).clamp(0, 1).permute(0, 3, 1, 2).contiguous()

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a denoising step calls, or to decode latents, or a text encoder for prompts of one length."""
        if run in ("text_encoder", "text_encoder_2"):
            (length,) = set(batch.seq_lens)
            yield run, (torch.empty(len(batch.seq_lens), length, dtype=torch.int64),)
            return
        assert batch.images is not None
        latents_BYXC = torch.empty(*batch.images, self.in_channels)
        if run == "decode":
            yield run, (latents_BYXC,)
        else:
            images = batch.images[0]
            timestep_B, sizes_B6 = (torch.empty(images, *s, dtype=torch.float32) for s in ((), (SIZES,)))
            text_BNJ = torch.empty(images, batch.text, self.text_features)
            pooled_BP = torch.empty(images, self.pooled_features)
            yield run, (latents_BYXC, timestep_B, text_BNJ, pooled_BP, sizes_B6)

    def latents_of(self, height: int, width: int) -> list[int]:
        """The shape of an image's latents."""
        return [height // LATENT_PIXELS, width // LATENT_PIXELS, self.in_channels]

    def stages(self) -> dict[str, Stage]:
        stages = {"denoise": Stage(most=DENOISED)}
        if self.text_encoder is not None:
            stages |= dict.fromkeys(("text_encoder", "text_encoder_2"), Stage(most=ENCODED))
        if self.vae is not None:
            stages["to_pixels"] = Stage(most=DECODED)
        return stages

    def program(
        self,
        text: Tensor,
        pooled: Tensor,
        height: int,
        width: int,
        steps: int = 50,
        guidance: float = 5.0,
        seed: int = 0,
    ) -> Program:
        """text: ids [N] for the first text encoder, pooled: ids [N] for the second, or what both make of
        them, features [N, J] and [P]; height and width in pixels, multiples of 8 times what the U-Net halves
        them by; guidance up to 1: without a second pass -> latents [Y, X, C]"""
        self._require(text, pooled)
        self._require_numbers(height, width, steps, guidance, seed)
        if not text.is_floating_point():
            calls = [Call("text_encoder", text.long()), Call("text_encoder_2", pooled.long())]
            first_NJ, (second_NJ, pooled) = yield calls
            text = torch.cat((first_NJ, second_NJ), dim=-1)
        prompts = [side.to(self.place.dtype)[None] for side in (text, pooled)]
        if guidance > 1:  # no prompt is all zeros
            prompts = [torch.cat((torch.zeros_like(side), side)) for side in prompts]
        timesteps_N, levels_N = self.schedule.levels(steps)
        rows, columns, channels = self.latents_of(height, width)
        generator = torch.Generator().manual_seed(seed)
        noise_CYX = torch.randn(
            (channels, rows, columns), generator=generator, dtype=self.place.dtype, device="cpu"
        )
        noise_YXC = noise_CYX.permute(1, 2, 0).contiguous()
        state = [euler.first_state(noise_YXC, levels_N), torch.zeros((), dtype=torch.int64)]
        # Rounded as the reference library does it, so that the U-Net has no rounding of its own here.
        sizes_6 = torch.tensor([height, width, 0, 0, height, width], dtype=self.place.dtype).float()
        scale = torch.tensor(guidance, dtype=torch.float32)
        done = yield Call("denoise", state, *prompts, sizes_6, timesteps_N, levels_N, scale, loop=steps)
        return {"latents": done[0]}

    def finish(self, outputs: Mapping[str, Tensor], **_: Any) -> Program:
        """-> image float32 [height, width, 3] within 0 .. 1; without a decoder the latents"""
        if self.vae is None:
            return {"image": outputs["latents"]}
        if self.overflows and self.place.dtype == torch.float16:
            raise RequestError(
                "the autoencoder overflows in float16 (force_upcast in its configuration): ask for latents, "
                "or load the model in bfloat16 or float32"
            )
        image = yield Call("to_pixels", outputs["latents"].to(self.place.dtype))
        return {"image": image.permute(1, 2, 0)}

    def denoise(
        self,
        state: list[Tensor],
        text: Tensor,
        pooled: Tensor,
        sizes: Tensor,
        timesteps: Tensor,
        levels: Tensor,
        guidance: Tensor,
    ) -> list[Tensor]:
        """One step of a batch. state: latents [B, Y, X, C] and how many steps they have behind them, int64
        [B]; text [B, G, N, J] and pooled [B, G, P] of the G passes, the last of which has the prompt; sizes
        [B, 6], timesteps [B, S], levels [B, S + 1] and guidance [B] float32 -> the next state"""
        x, done_B = state
        passes = text.shape[1]
        level_B, next_level_B = (levels.gather(1, at[:, None])[:, 0] for at in (done_B, done_B + 1))
        alike = (euler.model_input(x, level_B), timesteps.gather(1, done_B[:, None])[:, 0], sizes)
        sample, timestep_B, sizes_B6 = (
            part[:, None].expand(-1, passes, *part.shape[1:]).flatten(0, 1) for part in alike
        )
        noise = self(sample, timestep_B, text.flatten(0, 1), pooled.flatten(0, 1), sizes_B6)
        by_pass = noise.unflatten(0, (-1, passes)).unbind(1)
        noise = euler.guided(*by_pass, guidance) if passes == 2 else by_pass[0]
        return [euler.step(x, noise, level_B, next_level_B), done_B + 1]

    def to_pixels(self, latents: Tensor) -> Tensor:
        """latents [B, Y, X, C] -> RGB float32 [B, 3, height, width]"""
        return self.decode(latents)

    def _require(self, text: Any, pooled: Any) -> None:
        """RequestError unless both sides of a prompt are ids, or features, that the model takes."""
        for name, side in (("text", text), ("pooled", pooled)):
            if not isinstance(side, Tensor) or side.dtype in (torch.bool, torch.complex64):
                raise RequestError(f"{name} must be token ids or features, not {described(side)}")
            require_values(name, side)
        if text.is_floating_point() != pooled.is_floating_point():
            raise RequestError("text and pooled must both be token ids, or both features")
        if text.is_floating_point():
            if text.dim() != 2 or not len(text) or text.shape[1] != self.text_features:
                raise RequestError(f"text {list(text.shape)}: expected [tokens, {self.text_features}]")
            if tuple(pooled.shape) != (self.pooled_features,):
                raise RequestError(f"pooled {list(pooled.shape)}: expected [{self.pooled_features}]")
            for name, side in (("text", text), ("pooled", pooled)):
                if not bool(side.isfinite().all()):
                    raise RequestError(f"{name} has values that are not finite")
            return
        if self.readers is None:
            raise RequestError("token ids need text encoders, and the model has none: give features")
        most = min(reader.tokens for reader in self.readers)
        if text.dim() != 1 or text.shape != pooled.shape or not 1 <= len(text) <= most:
            raise RequestError(
                f"ids {list(text.shape)} and {list(pooled.shape)}: expected one prompt twice, of the same "
                f"1 to {most} tokens"
            )
        for ids, reader in zip((text, pooled), self.readers):
            low, high = (int(bound) for bound in ids.long().aminmax())
            if low < 0 or high >= reader.vocab_size:
                found = f"id {low if low < 0 else high} for {reader.name}"
                raise RequestError(f"{found}: its vocabulary has {reader.vocab_size}")

    def _require_numbers(self, height: Any, width: Any, steps: Any, guidance: Any, seed: Any) -> None:
        for name, side in (("height", height), ("width", width)):
            if not _is_integer(side) or not 0 < side <= MOST_SIDE or side % self.side_multiple:
                rule = f"a multiple of {self.side_multiple} pixels, up to {MOST_SIDE}"
                raise RequestError(f"{name}={side!r:.60}: must be {rule}")
        if not _is_integer(steps) or not 1 <= steps <= self.schedule.timesteps:
            raise RequestError(f"steps={steps!r:.60}: must be an integer from 1 to {self.schedule.timesteps}")
        if not isinstance(guidance, (int, float)) or not 0 <= guidance <= MOST_GUIDANCE:
            raise RequestError(f"guidance={guidance!r:.60}: must be a number from 0 to {MOST_GUIDANCE}")
        if not _is_integer(seed) or not 0 <= seed <= MOST_SEED:
            raise RequestError(f"seed={seed!r:.60}: must be an integer from 0 to {MOST_SEED}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class UNetSizes:
    """channels, heads and transformer layers (0: none) of each level, the finest first."""

    in_channels: int
    channels: list[int]
    heads: list[int]
    depths: list[int]
    layers_per_block: int
    text_features: int
    pooled_inputs: int
    size_features: int
    groups: int

    @classmethod
    def of(cls, config: ConfigReader) -> UNetSizes:
        """A UsageError names the key that is wrong."""
        require_supported(config)
        channels, groups = config.integers("block_out_channels"), config.integer("norm_num_groups", 32)
        levels = len(channels)
        attends, on_the_way_up = (attending(config, way, levels) for way in ("down", "up"))
        if attends != on_the_way_up[::-1] or not attends[-1]:
            raise config.error(
                "up_block_types", "must attend at the levels of down_block_types, and at the last"
            )
        # Its name says otherwise: it is the number of heads.
        heads = of_levels(config, "attention_head_dim", levels)
        depths = of_levels(config, "transformer_layers_per_block", levels)
        for width, count in zip(channels, heads):
            if width % groups or width % count:
                wrong = ("norm_num_groups", groups) if width % groups else ("attention_head_dim", count)
                raise config.error("block_out_channels", f"{width} is no multiple of {wrong[1]} ({wrong[0]})")
        size_features = config.integer("addition_time_embed_dim")
        pooled = config.integer("projection_class_embeddings_input_dim")
        if pooled <= SIZES * size_features:
            raise config.error(
                "projection_class_embeddings_input_dim",
                f"{pooled} leaves nothing of a prompt beside {SIZES} sizes of {size_features} features each",
            )
        return cls(
            config.integer("in_channels"),
            channels,
            heads,
            [depth if attending else 0 for depth, attending in zip(depths, attends)],
            config.integer("layers_per_block", 2),
            config.integer("cross_attention_dim"),
            pooled,
            size_features,
            groups,
        )

    @property
    def temb_channels(self) -> int:
        return TIME_WIDTHS * self.channels[0]

    def down(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Of each level its place and its layers' input and output channels."""
        for level, (before, width) in enumerate(pairwise((self.channels[0], *self.channels))):
            yield level, [(before, width)] + [(width, width)] * (self.layers_per_block - 1)

    def up(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Likewise, from the coarsest level; inputs are what comes from before and what was kept."""
        kept, x = [self.channels[0]], self.channels[-1]
        for level, width in enumerate(self.channels):
            halves = level + 1 < len(self.channels)
            kept += [width] * (self.layers_per_block + halves)
        for level in reversed(range(len(self.channels))):
            layers, width = [], self.channels[level]
            for _ in range(self.layers_per_block + 1):
                layers.append((x + kept.pop(), width))
                x = width
            yield level, layers

    def layers(self, level: int, channels: list[tuple[int, int]]) -> Iterator[UNetLayer2D]:
        attends = (self.depths[level], self.heads[level], self.text_features, self.groups)
        return (UNetLayer2D(*sides, self.temb_channels, *attends) for sides in channels)


def attending(config: ConfigReader, way: str, levels: int) -> list[bool]:
    """Which blocks of a way read the text."""
    reads, plain = (f"{kind}{way.title()}Block2D" for kind in ("CrossAttn", ""))
    return [name == reads for name in config.names(f"{way}_block_types", levels, (reads, plain))]


def of_levels(config: ConfigReader, key: str, levels: int) -> list[int]:
    """One number for each level; a number alone is that of all."""
    found = config.config.get(key)
    numbers = [config.integer(key)] * levels if isinstance(found, int) else config.integers(key)
    if len(numbers) != levels:
        raise config.error(key, f"{numbers}: expected one for each of the {levels} block_out_channels")
    return numbers


def require_supported(config: ConfigReader) -> None:
    """UsageError for U-Nets that are other mathematics."""
    choices = {
        "act_fn": "silu",
        "addition_embed_type": "text_time",
        "time_embedding_type": "positional",
        "resnet_time_scale_shift": "default",
        "mid_block_type": "UNetMidBlock2DCrossAttn",
    }
    for key, name in choices.items():
        config.choice(key, {name: None}, **({} if key == "addition_embed_type" else {"default": name}))
    for key in ("use_linear_projection", "flip_sin_to_cos"):
        if not config.flag(key, default=True):
            raise config.error(key, "false is not supported")
    config.refuse(
        [
            *("class_embed_type", "encoder_hid_dim", "encoder_hid_dim_type", "num_attention_heads"),
            *("dual_cross_attention", "only_cross_attention", "time_cond_proj_dim", "time_embedding_dim"),
            *("class_embeddings_concat", "resnet_skip_time_act", "freq_shift", "center_input_sample"),
        ],
        (None, False, 0),
    )
    for key, value in (("norm_eps", EPS), ("downsample_padding", 1), ("mid_block_scale_factor", 1)):
        if (found := config.number(key, value)) != value:
            raise config.error(key, f"{found:g} is not supported; supported: {value:g}")
    if config.integer("out_channels", default=config.integer("in_channels")) != config.integer("in_channels"):
        raise config.error("out_channels", "must be in_channels: what is predicted is the noise in them")
    for key in ("conv_in_kernel", "conv_out_kernel"):
        if config.integer(key, default=3) != 3:
            raise config.error(key, "must be 3")


def text_readers(config: ConfigReader) -> tuple[ConfigReader, ConfigReader] | None:
    """Of the sections of both encoders; None where there are none. A UsageError where one lacks the other."""
    names = ("text_encoder", "text_encoder_2")
    there = [name for name in names if config.has(name)]
    if len(there) == 1:
        (lacking,) = set(names) - set(there)
        raise config.error(lacking, f"is missing, but {there[0]} is there: a prompt needs both or neither")
    return (config.section(names[0]), config.section(names[1])) if there else None


def weight_map(sizes: UNetSizes) -> WeightMap:
    """Names of diffusers' file. What it calls q, k and v fills one matrix, k and v of the text another; its
    gates stand behind what they gate, ours before."""
    layers = {"down_blocks.*": "down_layers.*.*", "up_blocks.*": "up_layers.*.*"}
    names = {
        **{f"{name}.*": f"{name}.*" for name in ("conv_in", "conv_norm_out", "conv_out")},
        "time_embedding.*.*": "time_text.timestep_embedder.*.*",
        "add_embedding.*.*": "time_text.text_embedder.*.*",
        "down_blocks.*.downsamplers.0.conv.*": "downsamplers.*.*",
        "up_blocks.*.upsamplers.0.conv.*": "upsamplers.*.conv.*",
        **{f"{block}.resnets.*.*.*": f"{layer}.resnet.*.*" for block, layer in layers.items()},
        "mid_block.resnets.0.*.*": "mid_layer.resnet.*.*",
        "mid_block.resnets.1.*.*": "mid_resnet.*.*",
    }
    packed: dict[str, dict[str, int]] = {}
    pieces: dict[str, list[Source]] = {}
    last = len(sizes.channels) - 1
    transformers = {
        "mid_block.attentions.0": ("mid_layer.attention", sizes.channels[last]),
        **{
            f"{way}_blocks.{place}.attentions.*": (f"{way}_layers.{place}.*.attention", sizes.channels[level])
            for level, depth in enumerate(sizes.depths)
            for way, place in (("down", level), ("up", last - level))
            if depth
        },
    }
    for theirs, (ours, width) in transformers.items():
        names |= {f"{theirs}.{part}.*": f"{ours}.{part}.*" for part in ("norm", "proj_in", "proj_out")}
        theirs, ours = f"{theirs}.transformer_blocks.*", f"{ours}.transformer_blocks.*"
        names |= {f"{theirs}.norm{i}.*": f"{ours}.norm{i}.*" for i in (1, 2, 3)}
        names |= {f"{theirs}.attn{i}.to_out.0.*": f"{ours}.attn{i}.to_out.*" for i in (1, 2)}
        names |= {
            f"{theirs}.attn2.to_q.*": f"{ours}.attn2.to_q.*",
            f"{theirs}.ff.net.2.*": f"{ours}.ff.down_proj.linear.*",
        }
        packed[f"{ours}.attn1.to_qkv.*"] = {f"{theirs}.attn1.to_{part}.*": width for part in "qkv"}
        packed[f"{ours}.attn2.to_kv.*"] = {f"{theirs}.attn2.to_{part}.*": width for part in "kv"}
        halves, half = f"{theirs}.ff.net.0.proj.*", 4 * width
        pieces[f"{ours}.ff.gate_up_proj.linear.*"] = [Source(halves, half, half), Source(halves, half)]
    return WeightMap(names, packed, pieces=pieces)
