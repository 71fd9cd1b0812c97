"""SigLIP 2 vision encoder: packed patches of images of any resolution to one feature for each image.

    h = patch_embed(x);  h = block_i(h) for each i;  y = pool(layer_norm(h))

T patches of B images, P values of a patch (row, column, channel), D hidden. Parameters and activations have
the dtype of the module. `config` is the complete Hugging Face configuration of Siglip2VisionModel, or of
Siglip2Model, whose text tower is left out. The result is not normalised.
Mirrors transformers.models.siglip2.modeling_siglip2.Siglip2VisionModel (`pooler_output`) on patches without
padding, with the packing of vLLM's siglip2.Siglip2VisionTransformer.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.batching import Packed
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.weight_map import WeightMap

from ..L1.layer_norm import LayerNorm
from ..L2.patch_embed import PatchEmbed
from ..L2.vision_attention import AttentionPool
from ..L3.vision_block import VisionBlock

ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}


class Siglip2VisionModel(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        if reader.has("vision_config"):
            reader = reader.section("vision_config")
        layer = layer_arguments(reader)
        hidden_size, eps = layer["hidden_size"], layer["layer_norm_eps"]
        self.patch_size = reader.integer("patch_size")
        self.num_channels = reader.integer("num_channels")
        self.num_features = hidden_size
        values = self.num_channels * self.patch_size**2

        self.patches = PatchEmbed(values, hidden_size, num_patches(reader))
        self.layers = nn.ModuleList(VisionBlock(**layer) for _ in range(reader.integer("num_hidden_layers")))
        self.post_layernorm = LayerNorm(hidden_size, eps)
        self.head = AttentionPool(**layer)
        self.weight_map = weight_map(hidden_size)

    def forward(
        self, pixel_values: Tensor, spatial_shapes: Tensor, cu_seqlens: Tensor, max_seqlen: int
    ) -> Tensor:
        """pixel_values [T, P], spatial_shapes int64 [B, 2] (rows, columns of patches), cu_seqlens int32 [B+1]
        from 0 to T, max_seqlen patches of the largest image -> features [B, D]"""
        hidden_states = self.patches(pixel_values, spatial_shapes)
        for layer in self.layers:
            hidden_states = layer(hidden_states, cu_seqlens, max_seqlen)
        return self.head(self.post_layernorm(hidden_states), cu_seqlens, max_seqlen)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a pass over packed images calls."""
        images = len(batch.seq_lens)
        pixels_TP = torch.empty(batch.num_tokens, self.num_channels * self.patch_size**2)
        shapes_B2 = torch.empty(images, 2, dtype=torch.int64)
        starts_B1 = torch.empty(images + 1, dtype=torch.int32)
        yield run, (pixels_TP, shapes_B2, starts_B1, max(batch.seq_lens))

    def stages(self) -> dict[str, Stage]:
        return {"forward": Stage(Packed(self.patch_size, self.num_channels, self.place))}

    def program(self, image: Tensor) -> Program:
        """uint8 [H, W, C], sides that the patch size divides -> features [D]"""
        return {"features": (yield Call("forward", image))}


def layer_arguments(config: ConfigReader) -> dict[str, Any]:
    """What every block and the head are made with; a UsageError names the key that is wrong."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden_size % num_heads:
        raise config.error("hidden_size", f"{hidden_size} is no multiple of num_attention_heads, {num_heads}")
    if not config.flag("vision_use_head", default=True):
        raise config.error("vision_use_head", "an encoder without its pooling head is not supported")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": config.integer("intermediate_size"),
        "num_heads": num_heads,
        "hidden_act": config.choice("hidden_act", ACTIVATIONS),
        "layer_norm_eps": config.number("layer_norm_eps"),
    }


def num_patches(config: ConfigReader) -> int:
    """Entries of the position table, which is a square grid."""
    count = config.integer("num_patches")
    if math.isqrt(count) ** 2 != count:
        raise config.error("num_patches", f"{count} is no square")
    return count


def weight_map(hidden_size: int) -> WeightMap:
    """Names of the hub's file; query, key and value of a block fill one matrix, and the head's one tensor of
    all three fills two: the probe is projected alone."""
    layer, ours = "vision_model.encoder.layers.*", "layers.*"
    names = {
        "vision_model.embeddings.patch_embedding.*": "patches.projection.*",
        "vision_model.embeddings.position_embedding.weight": "patches.position_embedding",
        f"{layer}.layer_norm1.*": f"{ours}.layer_norm1.*",
        f"{layer}.layer_norm2.*": f"{ours}.layer_norm2.*",
        f"{layer}.self_attn.out_proj.*": f"{ours}.self_attn.out_proj.linear.*",
        f"{layer}.mlp.fc1.*": f"{ours}.mlp.fc1.linear.*",
        f"{layer}.mlp.fc2.*": f"{ours}.mlp.fc2.linear.*",
        "vision_model.post_layernorm.*": "post_layernorm.*",
        "vision_model.head.probe": "head.probe",
        "vision_model.head.attention.out_proj.*": "head.out_proj.*",
        "vision_model.head.layernorm.*": "head.layernorm.*",
        "vision_model.head.mlp.fc1.*": "head.mlp.fc1.linear.*",
        "vision_model.head.mlp.fc2.*": "head.mlp.fc2.linear.*",
    }
    packed = {
        f"{ours}.self_attn.qkv_proj.linear.*": {
            f"{layer}.self_attn.{name}_proj.*": hidden_size for name in ("q", "k", "v")
        }
    }
    split = {
        f"vision_model.head.attention.in_proj_{kind}": {
            f"head.q_proj.{kind}": hidden_size,
            f"head.kv_proj.{kind}": 2 * hidden_size,
        }
        for kind in ("weight", "bias")
    }
    text = "text_model"
    ignored = (
        "logit_scale",
        "logit_bias",
        f"{text}.embeddings.*.weight",
        f"{text}.encoder.layers.*.*.*",
        f"{text}.encoder.layers.*.*.*.*",
        f"{text}.final_layer_norm.*",
        f"{text}.head.*",
    )
    return WeightMap(names, packed, ignored, split=split)
