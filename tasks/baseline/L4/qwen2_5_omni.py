"""Qwen2.5-Omni's thinker: towers of images and videos and of audio, and the decoder of L4/qwen2_vl.

    v = visual(x)                                                  once for each image or video
    a = pooler(layers(stem(log_mel(s))))                           once for each clip
    h[t] = v or a[m[t]] if m[t] >= 0 else E[ids[t]]                m: which row stands for a token
    h = layer_i(h) for each i;  logits = float32(rms_norm(h) W_head^T)

T tokens, D hidden, V vocabulary. Of the vision tower: P patches of N values (frame, row, column, channel)
each, B frames; n = m x m patches of a block become one row. Blocks lie window by window while they are
attended: within their window, in the layers of fullatt_block_indexes within their frame. Of the audio tower:
clips of up to S samples, M mel bands, C chunks of up to L frames, R rows of all chunks, which are attended
within their chunk. A video's steps stand on the temporal axis by their time. What speaks in the checkpoint
(talker, token2wav) is left out. Parameters, activations and caches have the dtype of the module, tables of
angles at least float32 in the tower, mel features and logits float32. `config` is the Hugging Face
configuration of the whole or of the thinker.
Mirrors vllm.model_executor.models.qwen2_5_omni_thinker.Qwen2_5OmniThinkerForConditionalGeneration, and
transformers.models.qwen2_5_omni.modeling_qwen2_5_omni.Qwen2_5OmniVisionEncoder and Qwen2_5OmniAudioEncoder,
whose ends, from rows to tokens, are methods of their own; `forward` returns hidden states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.config import ConfigReader, text_config
from fastkernels.nn.decoder_weights import decoder_weights, gated_mlp_weights
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.media import Medium
from fastkernels.nn.merged_patches import Patching, Pictures, bounds, patch_places
from fastkernels.nn.paced_frames import PacedFrames
from fastkernels.nn.patch_windows import WindowedPatches, count_windows, window_order
from fastkernels.nn.program import Stage
from fastkernels.nn.recordings import HOP, SAMPLING_RATE, WINDOW, Chunks, Recordings, laid_out, longest
from fastkernels.nn.weight_map import ZEROS, WeightMap

from ..L1.axial_rope import AxialRopeTable
from ..L1.log_mel import LogMel
from ..L2.audio_pooler import AudioPooler
from ..L2.audio_stem import ChunkedAudioStem
from ..L2.patch_embed import PackedPatchEmbed
from ..L2.patch_merging import PackedRMSPatchMerger
from ..L3.encoder_layer import EncoderLayer
from ..L3.vision_block import GatedBlock
from .qwen2_vl import (
    DEVIATION,
    FRAME_PIXELS,
    IMAGE_PIXELS,
    MEAN,
    VISION_THETA,
    Qwen2VLForConditionalGeneration,
    layer_arguments,
)

VISION_ACTIVATIONS, AUDIO_ACTIVATIONS = {"silu": "silu"}, {"gelu": "gelu"}
RMS_NORM_EPS = 1e-6


class Qwen2_5OmniVisionEncoder(nn.Module):
    def __init__(self, vision_config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(vision_config, "vision_config.")
        layer, depth = vision_arguments(reader), reader.integer("depth")
        hidden_size = layer["hidden_size"]
        self.patching = Patching.of(reader)
        size, merge, frames = self.patching.patch_size, self.patching.merge_size, self.patching.frames
        self.window_side = reader.integer("window_size") // merge // size
        if not self.window_side:
            raise reader.error("window_size", f"is less than a block, {self.patching.multiple} pixels")
        self.full = whole_frames(reader)
        self.patch_embed = PackedPatchEmbed(size, frames, reader.integer("in_channels"), hidden_size)
        self.rotary_pos_emb = AxialRopeTable(hidden_size // layer["num_heads"], VISION_THETA, 0)
        self.blocks = nn.ModuleList(GatedBlock(**layer) for _ in range(depth))
        self.merger = PackedRMSPatchMerger(
            reader.integer("out_hidden_size"), hidden_size, merge, RMS_NORM_EPS
        )

    def forward(
        self,
        pixel_values: Tensor,
        spatial_shapes: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        num_windows: int,
    ) -> Tensor:
        """pixel_values [P, N], patches of a block side by side, spatial_shapes int64 [B, 2] (rows, columns of
        patches of each frame), cu_seqlens int32 [B+1] from 0 to P, max_seqlen patches of the largest frame,
        num_windows of all frames -> [P / n, D]"""
        merge, patches = self.patching.merge_size, pixel_values.shape[0]
        blocks = patches // merge**2
        frames = (spatial_shapes, cu_seqlens)
        order_N, windows_W1 = window_order(*frames, blocks, num_windows, merge, self.window_side)
        most = min(max_seqlen, (self.window_side * merge) ** 2)

        place_P2, _ = patch_places(*frames, patches, merge)
        place_P2 = _by_block(place_P2, blocks).index_select(0, order_N).flatten(0, 1)
        table_PK = self.rotary_pos_emb(place_P2.to(self.rotary_pos_emb.dtype) / (2 * math.pi))
        places_P = torch.arange(patches, device=pixel_values.device)
        hidden_states = _by_block(self.patch_embed(pixel_values), blocks)
        hidden_states = hidden_states.index_select(0, order_N).flatten(0, 1)
        for index, block in enumerate(self.blocks):
            rows = (cu_seqlens, max_seqlen) if index in self.full else (windows_W1, most)
            hidden_states = block(hidden_states, table_PK, places_P, *rows)
        return self.merger(hidden_states).index_select(0, order_N.argsort())


class Qwen2_5OmniAudioEncoder(nn.Module):
    def __init__(self, audio_config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(audio_config, "audio_config.")
        reader.refuse(["scale_embedding"])
        layer = audio_arguments(reader)
        hidden_size, num_mel_bins = layer["hidden_size"], reader.integer("num_mel_bins")
        self.chunk_tokens = reader.integer("n_window")
        self.log_mel = LogMel(num_mel_bins, SAMPLING_RATE, WINDOW, HOP)
        self.stem = ChunkedAudioStem(num_mel_bins, hidden_size, self.chunk_tokens)
        self.layers = nn.ModuleList(EncoderLayer(**layer) for _ in range(reader.integer("encoder_layers")))
        self.pooler = AudioPooler(hidden_size, reader.integer("output_dim"))

    @property
    def chunk_frames(self) -> int:
        return 2 * self.chunk_tokens

    def features(self, raw_speech: Tensor) -> Tensor:
        """float32 [B, S], values -1 .. 1 at 16 kHz -> mel frames of all clips [F, M], as the weights are"""
        features_BMF = self.log_mel(raw_speech).to(self.stem.conv1.weight.dtype)
        return features_BMF.mT.flatten(0, 1)

    def forward(
        self,
        input_features: Tensor,
        frame_index: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        num_tokens: int,
    ) -> Tensor:
        """input_features [F, M], frame_index int64 [C, L] (L2/audio_stem), cu_seqlens int32 [C+1] from 0 to
        R = num_tokens, max_seqlen rows of the longest chunk -> [R, D]"""
        hidden_states = self.stem(input_features, frame_index, cu_seqlens, num_tokens)
        for layer in self.layers:
            hidden_states = layer(hidden_states, cu_seqlens, max_seqlen)
        return hidden_states


class Qwen2_5OmniThinkerForConditionalGeneration(Qwen2VLForConditionalGeneration):
    visual: Qwen2_5OmniVisionEncoder

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.weight_map = weight_map(layer_arguments(ConfigReader(text_config(config))), self)

    def add_towers(self, config: dict[str, Any]) -> dict[str, int]:
        config = config.get("thinker_config") or config
        self.visual = Qwen2_5OmniVisionEncoder(config.get("vision_config") or {})
        self.audio_tower = Qwen2_5OmniAudioEncoder(config.get("audio_config") or {})
        reader = ConfigReader(config)
        self.positions_per_second = reader.integer("position_id_per_seconds")
        return {kind: reader.integer(f"{kind}_token_index") for kind in ("image", "video", "audio")}

    def encode(
        self,
        pixel_values: Tensor,
        spatial_shapes: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        num_windows: int,
    ) -> Tensor:
        """Rows of images and videos, as the vision tower's forward."""
        return self.visual(pixel_values, spatial_shapes, cu_seqlens, max_seqlen, num_windows)

    def listen(
        self,
        raw_speech: Tensor,
        frame_index: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        num_tokens: int,
        pairs: Tensor,
    ) -> Tensor:
        """Rows of clips: raw_speech float32 [B, S]; frame_index, cu_seqlens, max_seqlen and num_tokens as of
        the audio tower's forward; pairs int64 [P, 2], of which of its rows each of the decoder's is made ->
        [P, D]"""
        features = self.audio_tower.features(raw_speech)
        hidden_states = self.audio_tower(features, frame_index, cu_seqlens, max_seqlen, num_tokens)
        return self.audio_tower.pooler(hidden_states, pairs)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a step of the decoder calls, or to encode packed images, or to listen to clips in chunks, of
        which those that are shorter than the others end a clip."""
        if run == "forward":
            yield from super().examples(run, batch)
        elif run == "encode":
            grids = [(rows, columns) for count, rows, columns in batch.grids for _ in range(count)]
            merge, side = self.visual.patching.merge_size, self.visual.window_side
            yield run, (*self.visual.patching.example(batch), count_windows(grids, merge, side))
        else:
            yield run, self._clips(batch.seq_lens)

    def _clips(self, rows: list[int]) -> tuple[Any, ...]:
        clips = [0]
        for count in rows:
            clips[-1] += 2 * count
            if count < self.audio_tower.chunk_tokens:
                clips.append(0)
        frames = [count for count in clips if count]
        index_CL, starts_C1, pairs_P2 = laid_out(frames, max(frames), self.audio_tower.chunk_frames)
        speech = torch.empty(len(frames), max(frames) * HOP, dtype=torch.float32)
        index = torch.empty(index_CL.shape, dtype=torch.int64)
        starts = torch.empty(starts_C1.shape, dtype=torch.int32)
        pairs = torch.empty(pairs_P2.shape, dtype=torch.int64)
        return speech, index, starts, max(rows), sum(rows), pairs

    def stages(self) -> dict[str, Stage]:
        tower = self.visual
        frames = WindowedPatches(tower.patching, self.place, MEAN, DEVIATION, tower.window_side)
        return {"encode": Stage(frames), "listen": Stage(Chunks(self.audio_tower.chunk_frames, self.place))}

    def media(self, processor: Mapping[str, Any]) -> dict[str, Medium]:
        """Images uint8 [H, W, 3] and videos uint8 [F, H, W, 3] of any size, alone or as (frames, {"fps":
        2.0}); audio float32 [N], alone or as (samples, rate)."""
        ids, shared = self.placeholders, ("encode", self.visual.patching)
        pace = self.positions_per_second
        return {
            "image": Pictures(ids["image"], *shared, *bounds(processor, IMAGE_PIXELS)),
            "video": PacedFrames(ids["video"], *shared, *FRAME_PIXELS, pace),
            "audio": Recordings(ids["audio"], "listen", longest(processor)),
        }


def _by_block(x_PD: Tensor, blocks: int) -> Tensor:
    return x_PD.unflatten(0, (blocks, -1))


def vision_arguments(config: ConfigReader) -> dict[str, Any]:
    """What every block of the tower is made with; a UsageError names the key that is wrong."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_heads")
    if hidden_size % (4 * num_heads):
        raise config.error("hidden_size", f"{hidden_size} is no multiple of 4 times num_heads, {num_heads}")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": config.integer("intermediate_size"),
        "num_heads": num_heads,
        "hidden_act": config.choice("hidden_act", VISION_ACTIVATIONS),
        "rms_norm_eps": RMS_NORM_EPS,
    }


def whole_frames(config: ConfigReader) -> frozenset[int]:
    """The blocks whose attention is within frames."""
    found, depth = config.config.get("fullatt_block_indexes"), config.integer("depth")
    if not isinstance(found, (list, tuple)) or not all(type(one) is int and one >= 0 for one in found):
        raise config.error("fullatt_block_indexes", f"must be a list of blocks, not {found!r}")
    return frozenset(one for one in found if one < depth)


def audio_arguments(config: ConfigReader) -> dict[str, Any]:
    """What every layer of the tower is made with; a UsageError names the key that is wrong."""
    hidden_size, num_heads = config.integer("d_model"), config.integer("encoder_attention_heads")
    if hidden_size % num_heads:
        raise config.error("d_model", f"{hidden_size} is no multiple of encoder_attention_heads, {num_heads}")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": config.integer("encoder_ffn_dim"),
        "num_heads": num_heads,
        "hidden_act": config.choice("activation_function", AUDIO_ACTIVATIONS),
    }


def weight_map(layer: dict[str, Any], model: Qwen2_5OmniThinkerForConditionalGeneration) -> WeightMap:
    """Names of the thinker's files; those of the whole model begin with `thinker.`. Query, key and value fill
    one matrix in each tower, gate and up another; keys of the audio tower have no bias."""
    sees, hears = "visual.blocks.*", "audio_tower.layers.*"
    names = {
        "visual.patch_embed.proj.weight": "visual.patch_embed.weight",
        f"{sees}.norm1.weight": f"{sees}.norm1.weight",
        f"{sees}.norm2.weight": f"{sees}.norm2.weight",
        f"{sees}.attn.proj.*": f"{sees}.attention.o_proj.linear.*",
        f"{sees}.mlp.down_proj.*": f"{sees}.mlp.down_proj.linear.*",
        "visual.merger.ln_q.weight": "visual.merger.ln_q.weight",
        "visual.merger.mlp.0.*": "visual.merger.fc1.*",
        "visual.merger.mlp.2.*": "visual.merger.fc2.*",
        "audio_tower.conv1.*": "audio_tower.stem.conv1.*",
        "audio_tower.conv2.*": "audio_tower.stem.conv2.*",
        f"{hears}.self_attn_layer_norm.*": f"{hears}.self_attn_layer_norm.*",
        f"{hears}.self_attn.out_proj.*": f"{hears}.self_attn.out_proj.linear.*",
        f"{hears}.final_layer_norm.*": f"{hears}.final_layer_norm.*",
        f"{hears}.fc1.*": f"{hears}.mlp.fc1.linear.*",
        f"{hears}.fc2.*": f"{hears}.mlp.fc2.linear.*",
        "audio_tower.ln_post.*": "audio_tower.pooler.ln_post.*",
        "audio_tower.proj.*": "audio_tower.pooler.proj.*",
    }
    block: Any = model.visual.blocks[0]
    seen, wide = block.attention.o_proj.linear.weight.shape[0], block.mlp.down_proj.linear.weight.shape[1]
    heard, attention = model.audio_tower.stem.conv1.weight.shape[0], f"{hears}.self_attn"
    packed = {
        f"{sees}.attention.qkv_proj.linear.*": {f"{sees}.attn.{part}.*": seen for part in "qkv"},
        f"{sees}.mlp.gate_up_proj.linear.*": {f"{sees}.mlp.{part}_proj.*": wide for part in ("gate", "up")},
        f"{attention}.qkv_proj.linear.weight": {f"{attention}.{part}_proj.weight": heard for part in "qkv"},
        f"{attention}.qkv_proj.linear.bias": {
            ZEROS if part == "k" else f"{attention}.{part}_proj.bias": heard for part in "qkv"
        },
    }
    begins = ("visual.", "audio_tower.", "model.", "lm_head.")
    ignored = ("audio_tower.audio_bos_eos_token.weight", "talker.**", "token2wav.**")
    towers = WeightMap(names, packed, ignored, prefixes={name: f"thinker.{name}" for name in begins})
    mlp = gated_mlp_weights(layer["intermediate_size"])
    return towers | decoder_weights(layer) | mlp
