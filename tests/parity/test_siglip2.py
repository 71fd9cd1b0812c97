"""Our SigLIP 2 vision encoder against transformers, float32 on the CPU, a tiny model with randomised weights.

transformers pads every image of a batch to the longest; ours packs them. References are built in code;
nothing is fetched.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from itertools import accumulate

import pytest
import torch
from fastkernels.baseline.L4.siglip2 import Siglip2VisionModel
from torch import Tensor, nn
from transformers import Siglip2VisionConfig
from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionModel as HfSiglip2

from fastkernels import kernels
from fastkernels.errors import UsageError, WeightsError
from fastkernels.loader.class_defaults import completed
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import export_weights, load_weights

TOLERANCE = 1e-5  # of the features' largest value, from the architecture's fact sheet
TINY = {
    "model_type": "siglip2_vision_model",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 8,
    "num_patches": 16,
    "num_channels": 3,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
PREFIX = "vision_model."  # the hub's file has it, the model's own state dict does not
Size = tuple[int, int]  # rows and columns of patches
SIZES: list[Size] = [
    (6, 6),
    (6, 8),
    (4, 4),
    (1, 1),
    (2, 13),
    (1, 3),
]  # one column: torch's own resampling is wrong


@lru_cache
def ours() -> Siglip2VisionModel:
    model = Siglip2VisionModel(TINY)
    random_weights(model, seed=0)
    return model


@lru_cache
def reference() -> HfSiglip2:
    config = Siglip2VisionConfig(**{k: v for k, v in TINY.items() if k != "model_type"})
    model = HfSiglip2._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    weights = {name.removeprefix(PREFIX): tensor for name, tensor in export_weights(ours())}
    model.load_state_dict(weights, strict=True)
    return model


def patches(size: Size, seed: int = 0) -> Tensor:
    return torch.randn(size[0] * size[1], 3 * 8 * 8, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def run(model: nn.Module, sizes: list[Size], inputs: list[Tensor]) -> Tensor:
    """[B, D] of one packed pass."""
    lengths = [len(x) for x in inputs]
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    return model(torch.cat(inputs), torch.tensor(sizes), starts, max(lengths))


@torch.inference_mode()
def expected(sizes: list[Size], inputs: list[Tensor]) -> Tensor:
    """[B, D] of transformers' padded batch."""
    longest = max(len(x) for x in inputs)
    padded = torch.stack([nn.functional.pad(x, (0, 0, 0, longest - len(x)), value=5.0) for x in inputs])
    mask = torch.stack([torch.arange(longest) < len(x) for x in inputs]).int()
    return reference()(padded, mask, torch.tensor(sizes)).pooler_output


def close(actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(actual, wanted, rtol=0, atol=TOLERANCE * max(1.0, wanted.abs().max().item()))


@pytest.mark.parametrize("size", SIZES)
def test_features_of_one_image(size: Size):
    wanted = expected([size], [patches(size)])
    assert wanted.std() > 0.5, "weights too small for a strong test"
    close(run(ours(), [size], [patches(size)]), wanted)


def test_resolutions_in_one_packed_pass_equal_the_padded_batch():
    inputs = [patches(size, seed) for seed, size in enumerate(SIZES)]
    close(run(ours(), SIZES, inputs), expected(SIZES, inputs))


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_a_packed_pass_equals_single_passes(implementation: str):
    inputs = [patches(size, seed) for seed, size in enumerate(SIZES)]
    with kernels.use(implementation):
        together = run(ours(), SIZES, inputs)
        alone = [run(ours(), [size], [x]) for size, x in zip(SIZES, inputs)]
    close(together, torch.cat(alone))
    close(together, expected(SIZES, inputs))


def test_the_order_of_images_does_not_matter():
    inputs = [patches(size, seed) for seed, size in enumerate(SIZES)]
    close(run(ours(), SIZES[::-1], inputs[::-1]).flip(0), run(ours(), SIZES, inputs))


def changed(**values: object) -> Siglip2VisionModel:
    """A model of another configuration with the same weights."""
    model = Siglip2VisionModel(TINY | values)
    load_weights(model, export_weights(ours()))
    return model


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_act": "gelu"},
        {"layer_norm_eps": 1e-3},
        {"num_attention_heads": 2},
        {"num_hidden_layers": 1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_model_would_be_noticed(wrong: dict[str, object]):
    """The tolerance is tight enough to see the exact gelu, another eps, other heads, a missing layer."""
    size = (6, 8)
    wanted = expected([size], [patches(size)])
    if "num_hidden_layers" in wrong:
        other = Siglip2VisionModel(TINY | wrong)
        load_weights(other, ((n, t) for n, t in export_weights(ours()) if "layers.1." not in n))
    else:
        other = changed(**wrong)
    error = (run(other, [size], [patches(size)]) - wanted).abs().max()
    assert error > 10 * TOLERANCE * wanted.abs().max()


def test_wrong_positions_would_be_noticed(monkeypatch):
    """The same patches on another grid; and without antialiasing, which only small grids show."""
    wanted = {size: expected([size], [patches(size)]) for size in ((2, 13), (6, 6))}
    other = run(ours(), [(9, 4)], [patches((6, 6))])
    assert (other - wanted[6, 6]).abs().max() > 100 * TOLERANCE

    def plain(place_T: Tensor, size: int, length: int, dtype: torch.dtype) -> Tensor:
        """Bilinear between neighbours, whatever the scale."""
        centre_T1 = length / size * (place_T.to(dtype) + 0.5)[:, None]
        kernel_TM = (1 - (torch.arange(length) + 0.5 - centre_T1).abs()).clamp(min=0)
        return kernel_TM / kernel_TM.sum(-1, keepdim=True)

    monkeypatch.setattr(import_module("fastkernels.kernels.resize_grid"), "weights", plain)
    with kernels.use(resize_grid="reference"):
        found = run(ours(), [(2, 13)], [patches((2, 13))])
    assert (found - wanted[2, 13]).abs().max() > 100 * TOLERANCE


def test_weights_of_a_hub_file():
    """The file of the whole model, with its text tower; and every name in it is known."""
    own = {PREFIX + name: tensor for name, tensor in reference().state_dict().items()}
    text = {
        f"text_model.{name}": torch.zeros(1)
        for name in (
            "embeddings.token_embedding.weight",
            "embeddings.position_embedding.weight",
            "encoder.layers.0.layer_norm1.bias",
            "encoder.layers.26.self_attn.q_proj.weight",
            "encoder.layers.3.mlp.fc1.bias",
            "final_layer_norm.weight",
            "head.bias",
        )
    }
    model = Siglip2VisionModel({"model_type": "siglip2", "vision_config": TINY})
    load_weights(
        model, [*own.items(), *text.items(), ("logit_scale", torch.zeros(1)), ("logit_bias", torch.zeros(1))]
    )
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), ours().parameters(), strict=True))
    exported = dict(export_weights(model))
    assert exported.keys() == own.keys()
    assert all(torch.equal(exported[name], own[name]) for name in own)
    with pytest.raises(WeightsError, match="in_proj_weight"):
        load_weights(model, ((n, t) for n, t in own.items() if "in_proj_weight" not in n))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_patches": 15}, "num_patches: 15 is no square"),
        ({"num_attention_heads": 5}, "hidden_size: 64 is no multiple"),
        ({"hidden_act": "relu"}, "hidden_act: 'relu'"),
        ({"vision_use_head": False}, "vision_use_head"),
    ],
)
def test_configurations_that_are_refused(change: dict[str, object], says: str):
    with pytest.raises(UsageError, match=says):
        Siglip2VisionModel(TINY | change)


def test_parameter_counts():
    real = {
        "model_type": "siglip2_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
    }
    for config, count in ((real, 427_888_064), (TINY, 126_240)):
        with torch.device("meta"):
            model = Siglip2VisionModel(completed(config))
        assert sum(parameter.numel() for parameter in model.parameters()) == count
