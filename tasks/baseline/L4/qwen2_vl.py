"""Qwen2-VL: a tower of images and videos, and a decoder in whose prompts its rows stand.

    e = tower(x)                                                   once for each image or video
    h[t] = e[m[t]] if m[t] >= 0 else E[ids[t]]                     m: which row stands for a token
    h = layer_i(h) for each i;  logits = float32(rms_norm(h) W_head^T)

T tokens, D hidden, V vocabulary. Of the tower: P patches of N values (frame, row, column, channel) each, B
frames, C features; n = m x m patches of a block become one row of the decoder. Attention is within a frame.
Parameters, activations and caches have the dtype of the module, tables of angles at least float32 in the
tower, logits float32. `config` is the Hugging Face configuration, with a section for the text or without.
Mirrors vllm.model_executor.models.qwen2_vl.Qwen2VLForConditionalGeneration and Qwen2VisionTransformer;
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
from fastkernels.nn.weight_map import WeightMap

from ..L1.axial_rope import AxialRopeTable
from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L2.patch_embed import PackedPatchEmbed
from ..L2.patch_merging import PackedPatchMerger
from ..L3.decoder_layer import DecoderLayer
from ..L3.vision_block import AxialBlock

ACTIVATIONS = {"silu": "silu"}
VISION_ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu"}
LAYER_NORM_EPS, VISION_THETA = 1e-6, 10000.0
# Of the processor, where the checkpoint's file does not say it: CLIP's colours, and pixels of an image and of
# a frame of a video after resizing.
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGE_PIXELS, FRAME_PIXELS = (56 * 56, 14 * 14 * 4 * 16384), (128 * 28 * 28, 768 * 28 * 28)


class Qwen2VisionTransformer(nn.Module):
    def __init__(self, vision_config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(vision_config, "vision_config.")
        layer = vision_arguments(reader)
        hidden_size = layer["hidden_size"]
        self.patching = Patching.of(reader)
        size, merge, frames = self.patching.patch_size, self.patching.merge_size, self.patching.frames
        self.patch_embed = PackedPatchEmbed(size, frames, reader.integer("in_channels"), hidden_size)
        self.rotary_pos_emb = AxialRopeTable(hidden_size // layer["num_heads"], VISION_THETA, 0)
        self.blocks = nn.ModuleList(AxialBlock(**layer) for _ in range(reader.integer("depth")))
        self.merger = PackedPatchMerger(reader.integer("hidden_size"), hidden_size, merge, LAYER_NORM_EPS)

    def forward(
        self, pixel_values: Tensor, spatial_shapes: Tensor, cu_seqlens: Tensor, max_seqlen: int
    ) -> Tensor:
        """pixel_values [P, N], patches of a block side by side, spatial_shapes int64 [B, 2] (rows, columns of
        patches of each frame), cu_seqlens int32 [B+1] from 0 to P, max_seqlen patches of the largest frame ->
        [P / n, D]"""
        num_patches = pixel_values.shape[0]
        table_PK = self.rotary_pos_emb(self.patch_coords(spatial_shapes, cu_seqlens, num_patches))
        places_P = torch.arange(num_patches, device=pixel_values.device)
        hidden_states = self.patch_embed(pixel_values)
        for block in self.blocks:
            hidden_states = block(hidden_states, table_PK, places_P, cu_seqlens, max_seqlen)
        return self.merger(hidden_states)

    def patch_coords(self, spatial_shapes: Tensor, cu_seqlens: Tensor, num_patches: int) -> Tensor:
        """[P, 2]: row and column of each patch in its frame's grid, as parts of a whole turn of the fastest
        angle; in float32 at least."""
        place_P2, _ = patch_places(spatial_shapes, cu_seqlens, num_patches, self.patching.merge_size)
        return place_P2.to(self.rotary_pos_emb.dtype) / (2 * math.pi)


class Qwen2VLForConditionalGeneration(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(text_config(config))
        layer = layer_arguments(reader)
        vocab_size, hidden_size = reader.integer("vocab_size"), layer["hidden_size"]
        self.hidden_size = hidden_size
        self.placeholders = self.add_towers(config)
        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        layers = reader.integer("num_hidden_layers")
        self.layers = nn.ModuleList(DecoderLayer(**layer) for _ in range(layers))
        self.norm = RMSNorm(hidden_size, layer["rms_norm_eps"])
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings"):
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()
        self.weight_map = weight_map(layer)

    def add_towers(self, config: dict[str, Any]) -> dict[str, int]:
        """What makes rows of media; the id that stands for each kind."""
        self.visual = Qwen2VisionTransformer(config.get("vision_config") or {})
        reader = ConfigReader(text_config(config))
        return {kind: reader.integer(f"{kind}_token_id") for kind in ("image", "video")}

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
        """input_ids [T]; positions [T], or [3, T] beside media; multimodal_embeddings [M, D], rows of media,
        and multimodal_index int64 [T], the one that stands for each token (below 0: none does) -> hidden
        states after the final norm [T, D]"""
        hidden_states, residual = self.embed_tokens(input_ids), None
        if multimodal_embeddings is not None:
            assert multimodal_index is not None
            rows_TD = multimodal_embeddings.index_select(0, multimodal_index.clamp(min=0))
            hidden_states = torch.where(multimodal_index[:, None] >= 0, rows_TD, hidden_states)
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32"""
        return self.lm_head(hidden_states)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a step of the decoder calls, or to encode packed images."""
        if run == "forward":
            yield from language_model(self, batch, media_features=self.hidden_size)
        else:
            yield run, self.visual.patching.example(batch)

    def stages(self) -> dict[str, Stage]:
        return {"encode": Stage(MergedPatches(self.visual.patching, self.place, MEAN, DEVIATION))}

    def media(self, processor: Mapping[str, Any]) -> dict[str, Medium]:
        """Images uint8 [H, W, 3] and videos uint8 [F, H, W, 3] of any size."""
        shared = ("encode", self.visual.patching)
        return {
            "image": Pictures(self.placeholders["image"], *shared, *bounds(processor, IMAGE_PIXELS)),
            "video": Pictures(self.placeholders["video"], *shared, *FRAME_PIXELS, is_video=True),
        }


def layer_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every DecoderLayer; a UsageError names the key that is wrong or not supported."""
    config.refuse(["use_sliding_window", "quantization_config"])
    arguments = attention_arguments(config)
    if "mrope_section" not in arguments["rope_parameters"]:
        raise config.error("rope_parameters", "mrope_section is missing")
    return {
        **arguments,
        "intermediate_size": config.integer("intermediate_size"),
        "rms_norm_eps": config.number("rms_norm_eps"),
        "hidden_act": config.choice("hidden_act", ACTIVATIONS),
        "qkv_bias": True,
    }


def vision_arguments(config: ConfigReader) -> dict[str, Any]:
    """What every block of the tower is made with; a UsageError names the key that is wrong."""
    hidden_size, num_heads = config.integer("embed_dim"), config.integer("num_heads")
    if hidden_size % (4 * num_heads):
        raise config.error("embed_dim", f"{hidden_size} is no multiple of 4 times num_heads, {num_heads}")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * config.integer("mlp_ratio"),
        "num_heads": num_heads,
        "hidden_act": config.choice("hidden_act", VISION_ACTIVATIONS),
        "layer_norm_eps": LAYER_NORM_EPS,
    }


def weight_map(layer: dict[str, Any]) -> WeightMap:
    """Names of the hub's files; newer libraries write `model.visual` and `model.language_model`."""
    block, ours = "visual.blocks.*", "visual.blocks.*"
    names = {
        "visual.patch_embed.proj.weight": "visual.patch_embed.weight",
        f"{block}.norm1.*": f"{ours}.norm1.*",
        f"{block}.norm2.*": f"{ours}.norm2.*",
        f"{block}.attn.qkv.*": f"{ours}.attention.qkv_proj.linear.*",
        f"{block}.attn.proj.*": f"{ours}.attention.o_proj.linear.*",
        f"{block}.mlp.fc1.*": f"{ours}.mlp.fc1.linear.*",
        f"{block}.mlp.fc2.*": f"{ours}.mlp.fc2.linear.*",
        "visual.merger.ln_q.*": "visual.merger.ln_q.*",
        "visual.merger.mlp.0.*": "visual.merger.fc1.*",
        "visual.merger.mlp.2.*": "visual.merger.fc2.*",
    }
    prefixes = {"visual.": "model.visual.", "model.": "model.language_model."}
    mlp = gated_mlp_weights(layer["intermediate_size"])
    return WeightMap(names, prefixes=prefixes) | decoder_weights(layer) | mlp
