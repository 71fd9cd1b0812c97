"""Our EfficientNetV2 in float32 on the CPU, its norms folded, against timm's in float64 with norms as they
stand, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fastkernels.baseline.L4.efficientnetv2 import EfficientNet
from torch import Tensor, nn

from fastkernels import kernels, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.weights import export_weights, load_weights
from tests.parity import apart
from tests.parity.timm_models import answers, images, unfolded

TOLERANCE = 1e-5  # of the architecture's fact sheet
CONFIGS = {name: c.config for name, c in registry.architecture("efficientnetv2").configs.items()}
TINY = CONFIGS["tiny"]
SIZES = [(2, 64, 96), (1, 8, 8), (3, 8, 80)]


@lru_cache
def loaded(name: str = "tiny") -> tuple[EfficientNet, dict[str, Tensor]]:
    model = EfficientNet(CONFIGS[name])
    assert model.weight_map.folding is not None
    weights = unfolded(model, dict(model.weight_map.folding.norms))
    load_weights(model, weights.items())
    return model, weights


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> list[Tensor]:
    """timm's logits of a tiny model for each of SIZES."""
    folder = tmp_path_factory.mktemp("timm")
    return answers("efficientnet.EfficientNet", TINY, "SiLU", loaded()[1], images(*SIZES), folder)


def difference(model: EfficientNet, wanted: list[Tensor]) -> float:
    with torch.inference_mode():
        found = [model(batch) for batch in images(*SIZES)]
    assert [each.shape for each in found] == [each.shape for each in wanted]
    return max((a - b).abs().max().item() for a, b in zip(found, wanted))


@apart.needs("timm")
@pytest.mark.parametrize("implementation", [None, "reference", "torch"])
def test_logits(implementation: str | None, wanted: list[Tensor]):
    assert wanted[0].std() > 0.1, "weights too small for a strong test"
    with kernels.use(implementation):
        assert difference(loaded()[0], wanted) < TOLERANCE


@apart.needs("timm")
def test_logits_of_the_real_configuration_at_64_pixels(tmp_path: Path):
    """All 60 blocks, their widths, strides and skips; timm takes the checkpoint by its names, strictly."""
    model, weights = loaded("rw_m")
    counted = [tensor.numel() for name, tensor in weights.items() if "running" not in name]
    assert sum(counted) - sum(name.endswith("tracked") for name in weights) == 53_236_442
    assert [stage[-1].conv_pwl.bias.numel() for stage in model.blocks] == [32, 56, 80, 152, 192, 328]
    reduced = [stage[j].se.conv_reduce.bias.numel() for stage in model.blocks[3:] for j in (0, 1)]
    assert reduced == [20, 38, 38, 48, 48, 82]
    batches = images((2, 64, 64))
    (expected,) = answers("efficientnet.EfficientNet", CONFIGS["rw_m"], "SiLU", weights, batches, tmp_path)
    with torch.inference_mode():
        found = model(batches[0]).double()
    assert expected.std() > 1
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE * expected.std().item())


def block(model: EfficientNet, stage: int, index: int) -> nn.Module:
    return model.blocks.get_submodule(f"{stage}.{index}")


def relu_in_squeeze_excite(model: EfficientNet) -> None:
    block(model, 2, 0).get_submodule("se").act1 = nn.ReLU()


def head_after_the_mean(model: EfficientNet) -> None:
    pool, head = model.global_pool, model.conv_head
    model.conv_head = nn.Identity()
    mean = pool.forward
    pool.forward = lambda x: head(mean(x)[:, None, None]).flatten(1)  # type: ignore[method-assign]


def excited_before_depthwise(model: EfficientNet) -> None:
    one = block(model, 3, 0)
    one.conv_dw, one.se = one.se, one.conv_dw


def ungated(model: EfficientNet) -> None:
    block(model, 2, 1).get_submodule("se").gates = torch.ones_like


def padded_as_tensorflow(model: EfficientNet) -> None:
    """More zeros after the map than before it, where the stride leaves the choice."""
    stem = model.conv_stem
    how = (stem.conv.weight, stem.bias, 2, 0, 1, "silu")
    stem.forward = lambda x: kernels.conv2d_activation(F.pad(x, (0, 0, 0, 1, 0, 1)), *how)  # type: ignore[assignment]


@apart.needs("timm")
@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(block(model, 0, 0).conv_exp, "activation", "none"),
        lambda model: setattr(block(model, 1, 1).conv_pwl, "activation", "silu"),
        lambda model: setattr(block(model, 2, 1).conv_dw, "activation", "none"),
        lambda model: setattr(block(model, 2, 1), "has_skip", False),
        lambda model: setattr(block(model, 3, 1).conv_pw, "activation", "relu"),
        lambda model: setattr(block(model, 3, 0).conv_dw.conv, "stride", 2),
        relu_in_squeeze_excite,
        excited_before_depthwise,
        ungated,
        padded_as_tensorflow,
        head_after_the_mean,
    ],
    ids=["exp", "pwl", "dw", "skip", "pw", "stride", "act", "place", "gates", "padding", "order"],
)  # fmt: skip
def test_a_wrong_model_would_be_noticed(change: Callable[[EfficientNet], None], wanted: list[Tensor]):
    model = EfficientNet(TINY)
    load_weights(model, loaded()[1].items())
    change(model)
    assert difference(model, wanted) > 10 * TOLERANCE


@apart.needs("timm")
def test_another_eps_would_be_noticed(wanted: list[Tensor]):
    model = EfficientNet(TINY | {"batch_norm_eps": 1e-3})
    load_weights(model, loaded()[1].items())
    assert difference(model, wanted) > 10 * TOLERANCE


def test_a_reduced_layer_of_the_wide_map_does_not_load():
    """Its width counts from the block's input."""
    weights = dict(loaded()[1])
    for name, shape in (("reduce", (24, 96, 1, 1)), ("expand", (96, 24, 1, 1))):
        weights[f"blocks.2.0.se.conv_{name}.weight"] = torch.zeros(shape)
    with pytest.raises(WeightsError, match=r"2 misshapen(?s:.*)se\.conv_reduce\.weight .* expected \[6, 96"):
        load_weights(EfficientNet(TINY), weights.items())


def test_what_is_folded_already_is_taken_as_it_is():
    folded = dict(export_weights(loaded()[0]))
    assert "blocks.2.1.conv_dw.bias" in folded
    assert not any("bn" in name for name in folded)
    again = EfficientNet(TINY)
    load_weights(again, folded.items())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), loaded()[0].parameters(), strict=True))


def test_squeeze_and_excitation_needs_its_width():
    with pytest.raises(UsageError, match="block_args: 'ir_r1_k3_s1_e4_c8' does not say se"):
        EfficientNet(TINY | {"block_args": [["ir_r1_k3_s1_e4_c8"]]})
