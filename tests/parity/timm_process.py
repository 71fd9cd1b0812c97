"""A model of timm (apart.py). FILE holds

    {"class": "efficientnet.EfficientNet", "arguments": {...}, "blocks": [[...]] or None, "weights": {...},
     "images": [float64 [B, 3, H, W], ...]}

and then of each batch {"features": forward_features, "logits": forward}, in float64. `blocks` are strings of
timm's definition of an architecture.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

OPERATORS = torch.library.Library("torchvision", "DEF")  # its wheel brings none beside a CPU build of PyTorch
for name in ("nms", "qnms"):
    OPERATORS.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def made(asked: dict[str, Any]) -> torch.nn.Module:
    module, name = asked["class"].rsplit(".", 1)
    arguments = dict(asked["arguments"])
    if asked["blocks"]:
        from timm.models import _efficientnet_builder as builder

        arguments["block_args"] = builder.decode_arch_def(asked["blocks"])
        arguments["round_chs_fn"] = builder.round_channels
    if "eps" in arguments:
        arguments["norm_layer"] = partial(torch.nn.LayerNorm, eps=arguments.pop("eps"))
    if "act" in arguments:
        arguments["act_layer"] = getattr(torch.nn, arguments.pop("act"))
    return getattr(import_module(f"timm.models.{module}"), name)(**arguments)


def main(path: Path) -> None:
    asked = torch.load(path)
    model = made(asked).double().eval()
    model.load_state_dict(asked["weights"], strict=True)
    with torch.inference_mode():
        found = [{"features": model.forward_features(x), "logits": model(x)} for x in asked["images"]]
    torch.save(found, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
