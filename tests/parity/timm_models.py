"""Random checkpoints of timm's convolutional classifiers, and what timm finds with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.weights import export_weights
from tests.parity import apart


def unfolded(model: nn.Module, norms: dict[str, str], seed: int = 0) -> dict[str, Tensor]:
    """A checkpoint of the model with norms that are not folded. norms: a convolution -> its norm; other
    tensors stay as they are named. Filters 1 / sqrt(fan in), means about 0.3, variances 0.5 .. 2."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def uniform(low: float, high: float, count: int) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator)

    found: dict[str, Tensor] = {}
    for name, tensor in export_weights(model):
        convolution = name.rpartition(".")[0]
        if tensor.dim() > 1:
            found[name] = normal(*tensor.shape) * tensor[0].numel() ** -0.5
        elif convolution not in norms:
            found[name] = normal(*tensor.shape) * 0.5
        else:
            channels, norm = len(tensor), norms[convolution]
            found[f"{norm}.weight"] = uniform(0.5, 1.5, channels)
            found[f"{norm}.bias"] = normal(channels) * 0.3
            found[f"{norm}.running_mean"] = 0.3 + 0.1 * normal(channels)
            found[f"{norm}.running_var"] = uniform(0.5, 2.0, channels)
            found[f"{norm}.num_batches_tracked"] = torch.tensor(7)
    return found


def images(*sizes: tuple[int, int, int]) -> list[Tensor]:
    """[B, H, W, 3] of each size."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*size, 3, generator=generator) for size in sizes]


def answers(
    cls: str,
    config: dict[str, Any],
    act: str,
    weights: dict[str, Tensor],
    batches: list[Tensor],
    folder: Path,
) -> list[Tensor]:
    """Logits of each batch in float64 by timm's class, made with our configuration."""
    names = ("stem_size", "num_features", "num_classes")
    arguments = {name: config[name] for name in names} | {"act": act}
    if cls.startswith("mobilenetv3"):
        arguments |= {"fix_stem": True, "head_bias": False, "head_norm": True}
    asked = {
        "class": cls,
        "arguments": arguments,
        "blocks": config["block_args"],
        "weights": weights,
        "images": [batch.double().permute(0, 3, 1, 2) for batch in batches],
    }
    return [found["logits"] for found in apart.answer("timm_process", asked, folder)]
