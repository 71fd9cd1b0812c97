"""Swin Transformer V2 image classifier: images to a logit for every class.

    h = stage_s(..(stage_0(embed(x))))          y = fc(mean(layer_norm(h)))

B images, Y, X rows and columns, L classes; mean over all pixels of the last map, behind the norm. Parameters
and activations have the dtype of the module. `config` holds the arguments of timm's class by their names.
Windows and shifts are those of its img_size, whatever the size of an image: a map of at most window_size rows
is one window there, and is not shifted.
Mirrors timm.models.swin_transformer_v2.SwinTransformerV2 with strict_img_size=False.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.batching import IMAGENET, Pixels
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.weight_map import ZEROS, WeightMap

from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L1.pool import GlobalMeanPool
from ..L2.conv_embed import ConvEmbed
from ..L3.swin_block import SwinTransformerV2Stage

EPS = 1e-5  # of every norm


class SwinTransformerV2(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        reader.choice("global_pool", {"avg": None})
        reader.refuse(["always_partition"])
        if not reader.flag("qkv_bias", default=True):
            raise reader.error("qkv_bias", "projections without a bias are not supported")
        if any(reader.config.get("pretrained_window_sizes") or ()):
            raise reader.error("pretrained_window_sizes", "another window than this one's is not supported")
        self.num_channels, self.patch_size = reader.integer("in_chans"), reader.integer("patch_size")
        depths, num_heads = (reader.integers(key) for key in ("depths", "num_heads"))
        if len(num_heads) != len(depths):
            raise reader.error("num_heads", f"has {len(num_heads)} stages, depths {len(depths)}")
        widths = [reader.integer("embed_dim") * 2**i for i in range(len(depths))]
        for width, heads in zip(widths, num_heads):
            if width % heads:
                raise reader.error("num_heads", f"{heads} heads do not divide {width} channels")
        side, window_size = reader.integer("img_size") // self.patch_size, reader.integer("window_size")

        self.patch_embed = ConvEmbed(self.num_channels, widths[0], self.patch_size, EPS)
        self.layers = nn.ModuleList(
            SwinTransformerV2Stage(
                widths[max(0, i - 1)],
                widths[i],
                depths[i],
                num_heads[i],
                *window_and_shift(-(-side // 2**i), window_size),
                downsample=i > 0,
                mlp_ratio=reader.number("mlp_ratio"),
            )
            for i in range(len(depths))
        )
        self.norm = LayerNorm(widths[-1], EPS)
        self.pool = GlobalMeanPool()
        self.fc = Linear(widths[-1], reader.integer("num_classes"), bias=True)
        self.weight_map = weight_map(widths)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """pixel_values [B, Y, X, 3], Y and X multiples of the patch size -> logits [B, L]"""
        features = self.patch_embed(pixel_values)
        for layer in self.layers:
            features = layer(features)
        return self.fc(self.pool(self.norm(features)))

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a pass over images of one size calls."""
        assert batch.images is not None
        yield run, (torch.empty(*batch.images, self.num_channels),)

    def stages(self) -> dict[str, Stage]:
        return {"forward": Stage(Pixels(self.patch_size, self.num_channels, self.place, IMAGENET))}

    def program(self, image: Tensor) -> Program:
        """uint8 [H, W, 3], sides that the patch size divides -> logits [L]"""
        return {"logits": (yield Call("forward", image))}


def window_and_shift(side: int, window_size: int) -> tuple[int, int]:
    """Of a stage whose maps have so many rows and columns at img_size."""
    return (side, 0) if side <= window_size else (window_size, window_size // 2)


def weight_map(widths: list[int]) -> WeightMap:
    """timm's names. Keys have no bias there: those rows of the packed one are zero."""
    block = "layers.*.blocks.*"
    names = {
        "patch_embed.proj.*": "patch_embed.patch_embeddings.*",
        "patch_embed.norm.*": "patch_embed.layernorm.*",
        "layers.*.downsample.*.*": "layers.*.downsample.*.*",
        f"{block}.attn.logit_scale": f"{block}.attn.logit_scale",
        f"{block}.attn.cpb_mlp.*.*": f"{block}.attn.cpb_mlp.*.*",
        f"{block}.attn.qkv.weight": f"{block}.attn.qkv.weight",
        f"{block}.attn.proj.*": f"{block}.attn.proj.*",
        f"{block}.mlp.*.*": f"{block}.mlp.*.linear.*",
        f"{block}.norm1.*": f"{block}.norm1.*",
        f"{block}.norm2.*": f"{block}.norm2.*",
        "norm.*": "norm.*",
        "head.fc.*": "fc.*",
    }
    packed = {
        f"layers.{i}.blocks.*.attn.qkv.bias": {
            f"layers.{i}.blocks.*.attn.q_bias": width,
            ZEROS: width,
            f"layers.{i}.blocks.*.attn.v_bias": width,
        }
        for i, width in enumerate(widths)
    }
    return WeightMap(names, packed)
