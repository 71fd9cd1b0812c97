"""EfficientNetV2 image classifier: an image to the logits of its classes.

    y = classifier(mean(head(blocks(stem(x)))))          head: 1 x 1 convolution of every place of the map

B images, Y, X rows and columns, C channels, N classes. Norms are folded into the convolutions when weights
are loaded; parameters and activations have the dtype of the module. `config` has the arguments of timm's
class; `block_args` are strings of its definitions of an architecture (fastkernels.nn.conv_blocks).
Mirrors timm.models.efficientnet.EfficientNet (efficientnetv2_rw_*) after fusing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.batching import IMAGENET, Pixels
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.conv_blocks import stages_of, stride_of, weight_map, width_of
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, Stage

from ..L1.linear import Linear
from ..L1.pool import GlobalMeanPool
from ..L2.conv_norm_act import ConvNormAct
from ..L3.conv_stage import ConvStage

STEM_STRIDE = 2


class EfficientNet(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        stem_size, num_features = reader.integer("stem_size"), reader.integer("num_features")
        stages = stages_of(reader, stem_size, "silu")
        self.num_channels = reader.integer("in_chans", default=3)
        self.multiple = STEM_STRIDE * stride_of(stages)

        self.conv_stem = ConvNormAct(self.num_channels, stem_size, 3, STEM_STRIDE, activation="silu")
        self.blocks = nn.Sequential(*(ConvStage(stage) for stage in stages))
        self.conv_head = ConvNormAct(width_of(stages), num_features, activation="silu")
        self.global_pool = GlobalMeanPool()
        self.classifier = Linear(num_features, reader.integer("num_classes"), bias=True)
        norms = {"conv_stem": "bn1", "conv_head": "bn2"}
        self.weight_map = weight_map(stages, norms, reader.number("batch_norm_eps"))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, 3], each channel normalised -> logits [B, N]"""
        return self.classifier(self.global_pool(self.conv_head(self.blocks(self.conv_stem(x)))))

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a pass over images of one size calls."""
        assert batch.images is not None
        yield run, (torch.empty(*batch.images, self.num_channels),)

    def stages(self) -> dict[str, Stage]:
        return {"forward": Stage(Pixels(self.multiple, self.num_channels, self.place, IMAGENET))}

    def program(self, image: Tensor) -> Program:
        """uint8 [H, W, 3], sides that the coarsest cell divides -> logits [N]"""
        return {"logits": (yield Call("forward", image))}
