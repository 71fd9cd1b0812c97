"""A stage of a convolutional net: blocks one after another, each of a kind of its own.

    y = block_n(.. block_2(block_1(x)))

B images, Y, X rows and columns, C channels, O outputs. A block is its kind (a key of KINDS) and what that is
made with: in_chs, out_chs and stride of every kind. Rounded to the dtype of x as its blocks do.
Mirrors the elements of `blocks` of timm.models.mobilenetv3.MobileNetV3 and
timm.models.efficientnet.EfficientNet, which are torch.nn.Sequential.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..L2.conv_norm_act import ConvNormAct
from ..L2.inverted_residual import EdgeResidual, InvertedResidual, UniversalInvertedResidual


def convolution(in_chs: int, out_chs: int, kernel_size: int, stride: int, activation: str) -> ConvNormAct:
    return ConvNormAct(in_chs, out_chs, kernel_size, stride, activation=activation)


KINDS = {
    "conv": convolution,
    "edge": EdgeResidual,
    "universal": UniversalInvertedResidual,
    "squeezed": InvertedResidual,
}


class ConvStage(nn.Sequential):
    def __init__(self, blocks: list[dict[str, Any]]) -> None:
        super().__init__(*(made(block) for block in blocks))

    def forward(self, input: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, Y', X', O]"""
        return super().forward(input)


def made(block: dict[str, Any]) -> nn.Module:
    """The block of {kind: ..., other arguments}."""
    arguments = dict(block)
    kind = arguments.pop("kind", None)
    if kind not in KINDS:
        raise ValueError(f"a block's kind must be one of {', '.join(KINDS)}, not {kind!r}")
    return KINDS[kind](**arguments)
