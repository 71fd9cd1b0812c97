"""Qwen3-VL: a tower of images and videos, whose rows reach several layers of a decoder (DeepStack).

    x = W p + b + sample(table, place)                             of every patch; x = block_i(x) for each i
    e = [merger(x) | merger_1(x of block t1) | merger_2(x of block t2) | ..]      once for each image or video
    h[t] = e[m[t]]_0 if m[t] >= 0 else E[ids[t]]                   m: which row stands for a token
    h = layer_i(h);  h[t] += e[m[t]]_(i+1) if m[t] >= 0            for each i, while there are levels
    logits = float32(rms_norm(h) W_head^T)

T tokens, D hidden, V vocabulary, L levels, W = (1 + L) D: a row has its levels side by side, so that one
index places all of them. Of the tower: P patches of N values (frame, row, column, channel) each, B frames, C
features; n = m x m patches of a block become one row. Attention is within a frame. merger normalises patches,
merger_1 and on whole blocks. Parameters, activations and caches have the dtype of the module, tables of
angles at least float32 in the tower, logits float32. What a level adds is rounded with the layer's output,
before the residual is added. `config` is the Hugging Face configuration.
Mirrors vllm.model_executor.models.qwen3_vl.Qwen3VLForConditionalGeneration and Qwen3_VisionTransformer;
`forward` returns hidden states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.attention_config import attention_arguments
from fastkernels.nn.config import ConfigReader, text_config
from fastkernels.nn.decoder_weights import decoder_weights, gated_mlp_weights
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.media import Medium
from fastkernels.nn.merged_patches import MergedPatches, Patching, Pictures, bounds, patch_places
from fastkernels.nn.program import Place, Stage
from fastkernels.nn.timed_frames import TimedFrames
from fastkernels.nn.weight_map import WeightMap

from ..L1.axial_rope import AxialRopeTable
from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L2.patch_embed import PlacedPatchEmbed
from ..L2.patch_merging import PackedPatchMerger
from ..L3.decoder_layer import DecoderLayer
from ..L3.vision_block import AxialBlock

ACTIVATIONS = {"silu": "silu"}
VISION_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
LAYER_NORM_EPS, VISION_THETA = 1e-6, 10000.0
TEXT, VISION = "model.language_model.", "model.visual."  # before names of the hub's files
# Of the processor, where the checkpoint's file does not say it: colours, and pixels of an image and of all
# frames of a video.
MEAN = DEVIATION = (0.5, 0.5, 0.5)
IMAGE_PIXELS, VIDEO_PIXELS = (256 * 256, 4096 * 4096), (128 * 32 * 32, 768 * 32 * 32)


class Qwen3VisionTransformer(nn.Module):
    def __init__(self, vision_config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(vision_config, "vision_config.")
        layer, self.taps = vision_arguments(reader)
        hidden_size = layer["hidden_size"]
        self.patching = Patching.of(reader)
        size, merge, frames = self.patching.patch_size, self.patching.merge_size, self.patching.frames
        self.patch_embed = PlacedPatchEmbed(
            size,
            frames,
            reader.integer("in_channels"),
            hidden_size,
            reader.integer("num_position_embeddings"),
        )
        self.rotary_pos_emb = AxialRopeTable(hidden_size // layer["num_heads"], VISION_THETA, 0)
        self.blocks = nn.ModuleList(AxialBlock(**layer) for _ in range(reader.integer("depth")))
        merger = (reader.integer("out_hidden_size"), hidden_size, merge, LAYER_NORM_EPS)
        self.merger = PackedPatchMerger(*merger)
        self.deepstack_merger_list = nn.ModuleList(
            PackedPatchMerger(*merger, use_postshuffle_norm=True) for _ in self.taps
        )

    def forward(
        self, pixel_values: Tensor, spatial_shapes: Tensor, cu_seqlens: Tensor, max_seqlen: int
    ) -> Tensor:
        """pixel_values [P, N], patches of a block side by side, spatial_shapes int64 [B, 2] (rows, columns of
        patches of each frame), cu_seqlens int32 [B+1] from 0 to P, max_seqlen patches of the largest frame ->
        [P / n, W]"""
        num_patches = pixel_values.shape[0]
        dtype = self.rotary_pos_emb.dtype
        place_P2, sides_P2 = patch_places(spatial_shapes, cu_seqlens, num_patches, self.patching.merge_size)
        table_PK = self.rotary_pos_emb(place_P2.to(dtype) / (2 * math.pi))
        at_P2 = place_P2.to(dtype) / (sides_P2 - 1)
        places_P = torch.arange(num_patches, device=pixel_values.device)
        hidden_states, levels = self.patch_embed(pixel_values, at_P2), []
        for index, block in enumerate(self.blocks):
            hidden_states = block(hidden_states, table_PK, places_P, cu_seqlens, max_seqlen)
            if index in self.taps:
                merger = self.deepstack_merger_list[self.taps.index(index)]
                levels.append(merger(hidden_states))
        return torch.cat((self.merger(hidden_states), *levels), dim=-1)


class Qwen3VLForConditionalGeneration(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(text_config(config))
        self.visual = Qwen3VisionTransformer(config.get("vision_config") or {})
        self.layers, self.weight_map = self.decoder(reader)
        self.levels = len(self.visual.taps)
        if len(self.layers) < self.levels:
            raise reader.error("num_hidden_layers", f"{len(self.layers)} are less than {self.levels} taps")
        vocab_size, hidden_size = reader.integer("vocab_size"), reader.integer("hidden_size")
        self.hidden_size = hidden_size
        self.placeholders = {
            "image": reader.integer("image_token_id"),
            "video": reader.integer("video_token_id"),
        }
        self.around = reader.integer("vision_start_token_id"), reader.integer("vision_end_token_id")
        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        self.norm = RMSNorm(hidden_size, reader.number("rms_norm_eps"))
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings"):
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()

    def decoder(self, config: ConfigReader) -> tuple[nn.ModuleList, WeightMap]:
        """The layers, and the names of all weights."""
        layer = layer_arguments(config)
        layers = (DecoderLayer(**layer) for _ in range(config.integer("num_hidden_layers")))
        mlp = gated_mlp_weights(layer["intermediate_size"], f"{TEXT}layers.*.mlp")
        return nn.ModuleList(layers), weight_map(layer) | mlp

    def encode(
        self, pixel_values: Tensor, spatial_shapes: Tensor, cu_seqlens: Tensor, max_seqlen: int
    ) -> Tensor:
        """Rows of images and videos, as the tower's forward."""
        return self.visual(pixel_values, spatial_shapes, cu_seqlens, max_seqlen)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        multimodal_embeddings: Tensor | None = None,
        multimodal_index: Tensor | None = None,
    ) -> Tensor:
        """input_ids [T]; positions [T], or [3, T] beside media; multimodal_embeddings [M, W], rows of media,
        and multimodal_index int64 [T], the one that stands for each token (below 0: none does) -> hidden
        states after the final norm [T, D]"""
        hidden_states, residual, levels = self.embed_tokens(input_ids), None, []
        if multimodal_embeddings is not None:
            assert multimodal_index is not None
            is_row_T1, rows_T = multimodal_index[:, None] >= 0, multimodal_index.clamp(min=0)
            first, *levels = multimodal_embeddings.split(self.hidden_size, dim=1)
            hidden_states = torch.where(is_row_T1, first.index_select(0, rows_T), hidden_states)
        for index, layer in enumerate(self.layers):
            hidden_states, residual = layer(positions, hidden_states, residual)
            if index < len(levels):
                added_TD = hidden_states + levels[index].index_select(0, rows_T)
                hidden_states = torch.where(is_row_T1, added_TD, hidden_states)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32"""
        return self.lm_head(hidden_states)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a step of the decoder calls, or to encode packed images."""
        if run == "forward":
            yield from language_model(self, batch, media_features=(1 + self.levels) * self.hidden_size)
        else:
            yield run, self.visual.patching.example(batch)

    def stages(self) -> dict[str, Stage]:
        return {"encode": Stage(MergedPatches(self.visual.patching, self.place, MEAN, DEVIATION))}

    def media(self, processor: Mapping[str, Any]) -> dict[str, Medium]:
        """Images uint8 [H, W, 3] and videos uint8 [F, H, W, 3] of any size; beside a video when its frames
        were taken."""
        shared = ("encode", self.visual.patching)
        return {
            "image": Pictures(self.placeholders["image"], *shared, *bounds(processor, IMAGE_PIXELS)),
            "video": TimedFrames(self.placeholders["video"], *shared, *VIDEO_PIXELS, self.around),
        }


def attention_of(config: ConfigReader) -> dict[str, Any]:
    """Of every layer what both decoders, dense and of experts, have."""
    config.refuse(["use_sliding_window", "attention_bias"])
    config.choice("hidden_act", ACTIVATIONS)
    arguments = attention_arguments(config)
    if "mrope_section" not in arguments["rope_parameters"]:
        raise config.error("rope_parameters", "mrope_section is missing")
    arguments["rope_parameters"]["mrope_interleaved"] = True  # transformers reads no other layout
    eps = config.number("rms_norm_eps")
    return {**arguments, "rms_norm_eps": eps, "qk_norm_eps": eps}


def layer_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every DecoderLayer; a UsageError names the key that is wrong or not supported."""
    config.refuse(["quantization_config"])
    return {**attention_of(config), "intermediate_size": config.integer("intermediate_size")}


def vision_arguments(config: ConfigReader) -> tuple[dict[str, Any], list[int]]:
    """What every block of the tower is made with, and the blocks whose output is a level of its own; a
    UsageError names the key that is wrong."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_heads")
    if hidden_size % (4 * num_heads):
        raise config.error("hidden_size", f"{hidden_size} is no multiple of 4 times num_heads, {num_heads}")
    if math.isqrt(positions := config.integer("num_position_embeddings")) ** 2 != positions:
        raise config.error("num_position_embeddings", f"{positions} make no square")
    taps: Any = config.config.get("deepstack_visual_indexes")
    depth = config.integer("depth")
    are_taps = isinstance(taps, (list, tuple)) and all(type(tap) is int and 0 <= tap < depth for tap in taps)
    if not are_taps or sorted(set(taps)) != list(taps):
        raise config.error(
            "deepstack_visual_indexes", f"must be a growing list of blocks below {depth}, not {taps!r}"
        )
    arguments = {
        "hidden_size": hidden_size,
        "intermediate_size": config.integer("intermediate_size"),
        "num_heads": num_heads,
        "hidden_act": config.choice("hidden_act", VISION_ACTIVATIONS),
        "layer_norm_eps": LAYER_NORM_EPS,
    }
    return arguments, list(taps)


def weight_map(layer: dict[str, Any]) -> WeightMap:
    """Names of the hub's files, but those of the decoder's feed-forward blocks."""
    block = "blocks.*"
    tower = {
        "patch_embed.proj.weight": "patch_embed.weight",
        "patch_embed.proj.bias": "patch_embed.bias",
        "pos_embed.weight": "patch_embed.position_embedding",
        f"{block}.norm1.*": f"{block}.norm1.*",
        f"{block}.norm2.*": f"{block}.norm2.*",
        f"{block}.attn.qkv.*": f"{block}.attention.qkv_proj.linear.*",
        f"{block}.attn.proj.*": f"{block}.attention.o_proj.linear.*",
        f"{block}.mlp.linear_fc1.*": f"{block}.mlp.fc1.linear.*",
        f"{block}.mlp.linear_fc2.*": f"{block}.mlp.fc2.linear.*",
    }
    for merger in ("merger", "deepstack_merger_list.*"):
        tower[f"{merger}.norm.*"] = f"{merger}.ln_q.*"
        tower[f"{merger}.linear_fc1.*"] = f"{merger}.fc1.*"
        tower[f"{merger}.linear_fc2.*"] = f"{merger}.fc2.*"
    return WeightMap(tower).under(VISION, "visual.") | decoder_weights(layer, TEXT)
