"""ConvNeXt V2 image classifier: images to a logit for every class.

    h = stage_s(..(stage_0(embed(x))))          y = classifier(layer_norm(mean(h)))

B images, Y, X rows and columns, L classes; mean over all pixels of the last map, before the norm. Parameters
and activations have the dtype of the module. `config` is the complete Hugging Face configuration of
ConvNextV2ForImageClassification.
Mirrors transformers.models.convnextv2.modeling_convnextv2.ConvNextV2ForImageClassification (timm:
models.convnext.ConvNeXt).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.batching import IMAGENET, Pixels
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.weight_map import WeightMap

from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L1.pool import GlobalMeanPool
from ..L2.conv_embed import ConvEmbed
from ..L2.convnext_block import EPS
from ..L3.convnext_stage import ConvNextV2Stage

# ConvNextV2GRN's vectors have four dimensions in a checkpoint.
WEIGHT_MAP = WeightMap(
    {
        "convnextv2.embeddings.*.*": "embeddings.*.*",
        "convnextv2.encoder.stages.*.downsampling_layer.*.*": "encoder.*.downsampling_layer.*.*",
        "convnextv2.encoder.stages.*.layers.*.*.*": "encoder.*.layers.*.*.*",
        "convnextv2.layernorm.*": "layernorm.*",
        "classifier.*": "classifier.*",
    },
    vectors={"encoder.*.layers.*.grn.*": 4},
)


class ConvNextV2ForImageClassification(nn.Module):
    place: Place
    weight_map = WEIGHT_MAP

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        reader.choice("hidden_act", {"gelu": None})
        patch_size = reader.integer("patch_size")
        self.num_channels = reader.integer("num_channels")
        widths, depths = (reader.integers(key) for key in ("hidden_sizes", "depths"))
        if len(depths) != len(widths):
            raise reader.error("depths", f"has {len(depths)} stages, hidden_sizes {len(widths)}")
        self.smallest = patch_size * 2 ** (len(depths) - 1)  # a side that leaves one pixel of the last map

        self.embeddings = ConvEmbed(self.num_channels, widths[0], patch_size, EPS)
        self.encoder = nn.ModuleList(
            ConvNextV2Stage(widths[max(0, i - 1)], widths[i], 2 if i else 1, depth)
            for i, depth in enumerate(depths)
        )
        self.pool = GlobalMeanPool()
        self.layernorm = LayerNorm(widths[-1], reader.number("layer_norm_eps"))
        self.classifier = Linear(widths[-1], reader.num_labels(), bias=True)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """pixel_values [B, Y, X, 3], Y and X at least 32 where there are four stages -> logits [B, L]"""
        features = self.embeddings(pixel_values)
        for stage in self.encoder:
            features = stage(features)
        return self.classifier(self.layernorm(self.pool(features)))

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a pass over images of one size calls."""
        assert batch.images is not None
        yield run, (torch.empty(*batch.images, self.num_channels),)

    def stages(self) -> dict[str, Stage]:
        return {"forward": Stage(Pixels(1, self.num_channels, self.place, IMAGENET, smallest=self.smallest))}

    def program(self, image: Tensor) -> Program:
        """uint8 [H, W, 3] -> logits [L]"""
        return {"logits": (yield Call("forward", image))}
