"""Oasis: a world model. From one frame of a game and the player's actions the frames that follow, each
denoised behind those before it.

    c = mlp(sin(t)) + Wa a + ba                          of each frame: its noise level, its action
    x = embed(latents);  x = block_i(x, c) for each i    spatial half, then temporal
    v = unpatchify(adaptive_norm(x, c) W^T + b)
    rollout: x_i = noise; x_i = ddim(x_i, v_i) for each step, at t = 14 for the frames before i
    latents = scaling mean(encoder(2 image - 1)),  image = (decoder(latents / scaling) + 1) / 2

B clips, T frames, C latent channels, h x w latents of a frame, L patches of a frame, D hidden, K head size, H
heads. No frame depends on a later one, and a frame that is done always has the same noise level: its keys and
values are computed once, in the first step of the frame that follows. The network and the encoder have the
dtype of the module; noise levels, tables of rotations, latents and the decoder are float32. `config` has
sections `dit` and `vae`, and what the sampler needs.
Mirrors etched-ai/open-oasis: `forward` is dit.DiT, `encode` and `decode` are vae.AutoencoderKL with what is
done before and after it, `rollout` is the loop of generate.py for clips of up to max_frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn import diffusion_forcing
from fastkernels.nn.batching import Pixels, described
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.patches import to_patches
from fastkernels.nn.precision import at_least_float32
from fastkernels.nn.program import Call, Place, Program, RequestError, Stage
from fastkernels.nn.weight_map import Source, WeightMap

from ..L1.diffusion_rope import FluxPosEmbed, PixelRotaryEmbedding
from ..L1.linear import Linear
from ..L1.sinusoidal import Timesteps
from ..L2.adaptive_norm import AdaLayerNormContinuous
from ..L2.timestep_embedding import SINUSOIDAL_FEATURES, TimestepEmbedding
from ..L3.spatiotemporal_block import SpatioTemporalDiTBlock
from ..L3.vit_vae import COLOURS, ViTDecoder, ViTEncoder

ROPE_THETA, MAX_FREQ, EPS = 10000.0, 256.0, 1e-6  # not in the configuration
MOST_CLIPS = 8  # of one launch: of 32 frames 2.4 GB of keys and values in float16
MOST_SEED = 2**63 - 1
Caches = Sequence[tuple[Tensor, Tensor]]  # keys, rotated, and values [B L, S, H, K] of each layer


class Oasis(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        dit, vae = reader.section("dit"), reader.section("vae")
        self.height, self.width = dit.integer("input_h"), dit.integer("input_w")
        self.channels, self.patch_size = dit.integer("in_channels"), dit.integer("patch_size")
        self.max_frames, self.num_actions = dit.integer("max_frames"), dit.integer("external_cond_dim")
        self.grid = [whole(dit, key, self.patch_size) for key in ("input_h", "input_w")]
        block = block_arguments(dit, "hidden_size", "num_heads")
        hidden_size, self.num_heads = block["hidden_size"], block["num_heads"]
        self.head_size = hidden_size // self.num_heads
        patch_values = self.channels * self.patch_size**2

        self.x_embedder = Linear(patch_values, hidden_size, bias=True)
        self.time_proj = Timesteps(SINUSOIDAL_FEATURES)
        self.t_embedder = TimestepEmbedding(SINUSOIDAL_FEATURES, hidden_size)
        self.external_cond = Linear(self.num_actions, hidden_size, bias=True)
        axis_dim = self.head_size // 2
        self.spatial_rope = PixelRotaryEmbedding(axis_dim, MAX_FREQ, self.head_size, self.grid)
        self.temporal_rope = FluxPosEmbed(ROPE_THETA, [self.head_size])
        depth = dit.integer("depth")
        self.blocks = nn.ModuleList(SpatioTemporalDiTBlock(**block) for _ in range(depth))
        self.norm_out = AdaLayerNormContinuous(hidden_size, EPS)
        self.proj_out = Linear(hidden_size, patch_values, bias=True)

        self.pixels = vae.integer("input_height"), vae.integer("input_width")
        self.vae_patch = vae.integer("patch_size")
        self.require_latents(vae)
        self.encoder = ViTEncoder(**half_arguments(vae, "enc"))
        with at_least_float32():
            self.decoder = ViTDecoder(**half_arguments(vae, "dec"))
        self.scaling = reader.number("scaling_factor")
        self.alphas = diffusion_forcing.alphas_cumprod(reader.integer("max_noise_level"))
        self.context_level = reader.integer("stabilization_level") - 1
        self.most_noise = reader.number("noise_abs_max")
        self.weight_map = weight_map(hidden_size, self.channels, self.patch_size) | vae_weights(
            self.vae_patch
        )

    def require_latents(self, vae: ConfigReader) -> None:
        """UsageError unless the autoencoder's latents are those that the network takes."""
        sides = (whole(vae, key, self.vae_patch) for key in ("input_height", "input_width"))
        found, needed = (vae.integer("latent_dim"), *sides), (self.channels, self.height, self.width)
        if found != needed:
            raise vae.error(
                "latent_dim", f"and patches make latents {found}, dit's channels and sides are {needed}"
            )

    def forward(self, x: Tensor, t: Tensor, external_cond: Tensor) -> Tensor:
        """x [B, T, C, h, w], t float32 [B, T], external_cond, the actions [B, T, A] -> v [B, T, C, h, w]"""
        return self.predict(x, t, external_cond, self.caches(*x.shape[:2]))

    def predict(self, x: Tensor, t: Tensor, external_cond: Tensor, caches: Caches) -> Tensor:
        """v of the last T frames of S. The caches hold the keys and values of the others, and then theirs."""
        new, frames = x.shape[1], caches[0][0].shape[1]
        rows, columns = self.grid
        here = {"dtype": torch.int64, "device": x.device}
        places_L2 = torch.cartesian_prod(torch.arange(rows, **here), torch.arange(columns, **here))
        spatial_LK = self.spatial_rope(places_L2)
        temporal_TK = self.temporal_rope(torch.arange(frames - new, frames, **here)[:, None])

        sinusoid_FS = self.time_proj(t.flatten()).to(external_cond.dtype)
        c_FD = self.t_embedder(sinusoid_FS) + self.external_cond(external_cond.flatten(0, 1))
        x_FLD = self.x_embedder(to_patches(x.flatten(0, 1), self.patch_size))
        x_BTLD, c_BTD = (part.unflatten(0, x.shape[:2]) for part in (x_FLD, c_FD))
        for block, (key_cache, value_cache) in zip(self.blocks, caches, strict=True):
            x_BTLD = block(x_BTLD, c_BTD, spatial_LK, temporal_TK, key_cache, value_cache)
        tokens_FLP = self.proj_out(self.norm_out(x_BTLD.flatten(0, 1), c_FD))
        size = self.patch_size
        parts = tokens_FLP.unflatten(-1, (size, size, self.channels)).unflatten(1, self.grid)  # F y x p q c
        return parts.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3).view_as(x)

    def caches(self, clips: int, frames: int) -> Caches:
        """Of so many frames, not filled."""
        weight = self.x_embedder.weight
        shape = (clips * self.grid[0] * self.grid[1], frames, self.num_heads, self.head_size)
        return [(weight.new_empty(shape), weight.new_empty(shape)) for _ in self.blocks]

    def rollout(self, prompt: Tensor, noise: Tensor, actions: Tensor, steps: int) -> Tensor:
        """prompt [B, P, C, h, w] and noise [B, N, C, h, w] float32, P at least 1, actions [B, P + N, A],
        each of the frame that it leads to -> latents of the new frames [B, N, C, h, w]"""
        prompted, total = prompt.shape[1], prompt.shape[1] + noise.shape[1]
        caches, latents, kept = self.caches(len(prompt), total), prompt, 0
        for i in range(prompted, total):
            x = noise[:, i - prompted].clamp(-self.most_noise, self.most_noise)
            for level, alpha, next_alpha in diffusion_forcing.steps_of(steps, self.alphas):
                # The first step brings along the frames before i whose keys and values are not kept yet.
                window = torch.cat((latents[:, kept:], x[:, None]), dim=1)
                t_BT = torch.full(window.shape[:2], self.context_level, dtype=x.dtype, device=x.device)
                t_BT[:, -1] = level
                so_far = [(key[:, : i + 1], value[:, : i + 1]) for key, value in caches]
                v = self.predict(window.to(actions.dtype), t_BT, actions[:, kept : i + 1], so_far)[:, -1]
                x, kept = diffusion_forcing.ddim_step(x, v, alpha, next_alpha), i
            latents = torch.cat((latents, x[:, None]), dim=1)
        return latents[:, prompted:]

    def encode(self, images: Tensor) -> Tensor:
        """[B, Y, X, 3] within -1 .. 1 -> latents [B, C, h, w], at least float32"""
        mean_BLC = self.encoder(images.permute(0, 3, 1, 2))[..., : self.channels]
        scaled_BLC = mean_BLC.to(torch.promote_types(mean_BLC.dtype, torch.float32)) * self.scaling
        return scaled_BLC.unflatten(1, (self.height, self.width)).permute(0, 3, 1, 2)

    def decode(self, latents: Tensor) -> Tensor:
        """[B, N, C, h, w], at least float32 -> RGB [B, N, Y, X, 3] within 0 .. 1"""
        z_FLC = (latents / self.scaling).flatten(0, 1).flatten(2).transpose(1, 2)
        images_FCYX = ((self.decoder(z_FLC) + 1) / 2).clamp(0, 1)
        return images_FCYX.permute(0, 2, 3, 1).unflatten(0, latents.shape[:2])

    def examples(self, run: str, batch: Batch) -> Examples:
        """What new frames of clips call: all frames of each (`forward`), or the last ones of max_frames - 1
        (`predict`); each run of grids is a clip. Or frames to encode or to decode, each grid one."""
        if run in ("encode", "decode"):
            frames = len(batch.grids) and sum(count for count, *_ in batch.grids)
            latents = torch.empty(1, frames, self.channels, self.height, self.width, dtype=torch.float32)
            pixels = torch.empty(frames, *self.pixels, COLOURS)
            yield run, (pixels if run == "encode" else latents,)
            return
        clips, (frames,) = len(batch.grids), {count for count, *_ in batch.grids}
        x = torch.empty(clips, frames, self.channels, self.height, self.width)
        t, actions = (
            torch.empty(clips, frames, dtype=torch.float32),
            torch.empty(clips, frames, self.num_actions),
        )
        longer = self.caches(clips, self.max_frames)
        caches = () if run == "forward" else ([(key[:, :-1], value[:, :-1]) for key, value in longer],)
        yield run, (x, t, actions, *caches)

    def stages(self) -> dict[str, Stage]:
        centred = ((0.5,) * COLOURS, (0.5,) * COLOURS)
        pixels = Pixels(self.vae_patch, COLOURS, self.place, centred)
        return {
            "encode": Stage(pixels, MOST_CLIPS),
            "rollout": Stage(most=MOST_CLIPS),
            "decode": Stage(most=MOST_CLIPS),
        }

    def program(self, image: Tensor, actions: Tensor, steps: int = 10, seed: int = 0) -> Program:
        """image uint8 [Y, X, 3], the first frame; actions float [N, A] within -1 .. 1, N below max_frames;
        steps 1 .. max_noise_level -> latents float32 [N, h, w, C] of the frames that the actions lead to"""
        require_whole("steps", steps, 1, len(self.alphas))
        require_whole("seed", seed, 0, MOST_SEED)
        self.require_actions(actions)
        if isinstance(image, Tensor) and image.dim() == 3 and tuple(image.shape[:2]) != self.pixels:
            sides = "{} x {}".format(*self.pixels)
            raise RequestError(
                f"image: {image.shape[0]} x {image.shape[1]} pixels, the model takes {sides}. Resize it"
            )
        prompt = yield Call("encode", image)
        generator = torch.Generator().manual_seed(seed)
        shape = (self.channels, self.height, self.width)
        noise = torch.stack([torch.randn(shape, generator=generator) for _ in actions])
        acted = nn.functional.pad(actions.to(self.place.dtype), (0, 0, 1, 0))  # nothing leads to the first
        latents = yield Call("rollout", prompt[None], noise.to(prompt.dtype), acted, steps)
        return {"latents": latents.permute(0, 2, 3, 1)}

    def finish(self, outputs: Mapping[str, Tensor], **_: Any) -> Program:
        """-> latents, and video float32 [N, Y, X, 3] within 0 .. 1"""
        latents = outputs["latents"]
        video = yield Call("decode", latents.to(self.place.device).permute(0, 3, 1, 2))
        return {"latents": latents, "video": video}

    def require_actions(self, actions: Any) -> None:
        is_table = isinstance(actions, Tensor) and actions.is_floating_point() and actions.dim() == 2
        if not is_table or actions.shape[1] != self.num_actions or not 0 < len(actions) < self.max_frames:
            raise RequestError(
                f"actions must be floats [frames, {self.num_actions}] of 1 to {self.max_frames - 1} frames, "
                f"not {described(actions)}"
            )
        if not bool((actions.abs() <= 1).all()):
            raise RequestError("actions must lie within -1 .. 1: buttons are 0 or 1, the camera's between")


def require_whole(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} must be an integer from {low} to {high}, not {value!r}")


def whole(config: ConfigReader, key: str, patch_size: int) -> int:
    """How many patches are a side; a UsageError unless they are a whole number."""
    side = config.integer(key)
    if side % patch_size:
        raise config.error(key, f"{side} is no multiple of patch_size, {patch_size}")
    return side // patch_size


def block_arguments(config: ConfigReader, size_key: str, heads_key: str) -> dict[str, Any]:
    """What every block is made with; a UsageError names the key that is wrong."""
    hidden_size, num_heads = config.integer(size_key), config.integer(heads_key)
    if hidden_size % (8 * num_heads):
        raise config.error(size_key, f"{hidden_size} is no multiple of 8 times {heads_key}, {num_heads}")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": int(hidden_size * config.number("mlp_ratio", 4.0)),
        "num_heads": num_heads,
        "eps": EPS,
    }


def half_arguments(vae: ConfigReader, half: str) -> dict[str, Any]:
    """Of the encoder, `enc`, or of the decoder, `dec`."""
    block = block_arguments(vae, f"{half}_dim", f"{half}_heads")
    shared = ("latent_dim", "input_height", "input_width", "patch_size", f"{half}_depth")
    return {
        **{key: vae.integer(key) for key in shared},
        f"{half}_dim": block["hidden_size"],
        f"{half}_heads": block["num_heads"],
        "intermediate_size": block["intermediate_size"],
    }


def weight_map(hidden_size: int, channels: int, patch_size: int) -> WeightMap:
    """Of the network. Its last modulation has its shift first, ours its scale."""
    names = {
        "x_embedder.proj.*": "x_embedder.*",
        "t_embedder.mlp.0.*": "t_embedder.linear_1.*",
        "t_embedder.mlp.2.*": "t_embedder.linear_2.*",
        "external_cond.*": "external_cond.*",
        "final_layer.linear.*": "proj_out.*",
    }
    for half in "st":
        names |= {
            f"blocks.*.{half}_adaLN_modulation.1.*": f"blocks.*.{half}_norm1.linear.*",
            f"blocks.*.{half}_attn.to_qkv.*": f"blocks.*.{half}_attn.qkv_proj.linear.*",
            f"blocks.*.{half}_attn.to_out.*": f"blocks.*.{half}_attn.to_out.linear.*",
            f"blocks.*.{half}_mlp.fc1.*": f"blocks.*.{half}_mlp.fc1.linear.*",
            f"blocks.*.{half}_mlp.fc2.*": f"blocks.*.{half}_mlp.fc2.linear.*",
        }
    modulation = "final_layer.adaLN_modulation.1.*"
    swapped = [Source(modulation, hidden_size, hidden_size), Source(modulation, hidden_size)]
    return WeightMap(
        names,
        pieces={"norm_out.linear.*": swapped},
        vectors={"x_embedder.weight": (-1, channels, patch_size, patch_size)},
        ignored=(
            "spatial_rotary_emb.freqs",
            "temporal_rotary_emb.freqs",
            "blocks.*.s_attn.rotary_emb.freqs",
            "blocks.*.t_attn.rotary_emb.freqs",
        ),
    )


def vae_weights(patch_size: int) -> WeightMap:
    names = {
        "patch_embed.proj.*": "encoder.patch_embedder.*",
        "enc_norm.*": "encoder.norm.*",
        "quant_conv.*": "encoder.quant_conv.*",
        "post_quant_conv.*": "decoder.post_quant_conv.*",
        "dec_norm.*": "decoder.norm.*",
        "predictor.*": "decoder.predictor.*",
    }
    for half in ("encoder", "decoder"):
        theirs, ours = f"{half}.*", f"{half}.blocks.*"
        names |= {
            f"{theirs}.norm1.*": f"{ours}.norm1.*",
            f"{theirs}.norm2.*": f"{ours}.norm2.*",
            f"{theirs}.attn.qkv.*": f"{ours}.attn.qkv_proj.linear.*",
            f"{theirs}.attn.proj.*": f"{ours}.attn.to_out.linear.*",
            f"{theirs}.mlp.fc1.*": f"{ours}.mlp.fc1.linear.*",
            f"{theirs}.mlp.fc2.*": f"{ours}.mlp.fc2.linear.*",
        }
    return WeightMap(names, vectors={"encoder.patch_embedder.weight": (-1, COLOURS, patch_size, patch_size)})
