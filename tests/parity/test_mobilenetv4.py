"""Our MobileNetV4 in float32 on the CPU, its norms folded, against timm's in float64 with norms as they
stand, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fastkernels.baseline.L4.mobilenetv4 import MobileNetV3
from torch import Tensor, nn

from fastkernels import kernels, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.weights import export_weights, load_weights
from tests.parity import apart
from tests.parity.timm_models import answers, images, unfolded

TOLERANCE = 1e-5  # of the architecture's fact sheet
CONFIGS = {name: c.config for name, c in registry.architecture("mobilenetv4").configs.items()}
TINY = CONFIGS["tiny"]
SIZES = [(2, 64, 96), (1, 16, 16), (3, 16, 80)]


@lru_cache
def loaded(name: str = "tiny") -> tuple[MobileNetV3, dict[str, Tensor]]:
    model = MobileNetV3(CONFIGS[name])
    assert model.weight_map.folding is not None
    weights = unfolded(model, dict(model.weight_map.folding.norms))
    load_weights(model, weights.items())
    return model, weights


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> list[Tensor]:
    """timm's logits of a tiny model for each of SIZES."""
    folder = tmp_path_factory.mktemp("timm")
    return answers("mobilenetv3.MobileNetV3", TINY, "ReLU", loaded()[1], images(*SIZES), folder)


def difference(model: MobileNetV3, wanted: list[Tensor]) -> float:
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
    """All 23 blocks and every stride; timm takes the checkpoint by its names, strictly."""
    model, weights = loaded("conv_medium")
    counted = [tensor.numel() for name, tensor in weights.items() if "running" not in name]
    assert sum(counted) - sum(name.endswith("tracked") for name in weights) == 9_715_512
    batches = images((2, 64, 64))
    arguments = (CONFIGS["conv_medium"], "ReLU", weights, batches, tmp_path)
    (expected,) = answers("mobilenetv3.MobileNetV3", *arguments)
    with torch.inference_mode():
        found = model(batches[0]).double()
    assert expected.std() > 1
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE * expected.std().item())


def block(model: MobileNetV3, stage: int, index: int) -> nn.Module:
    return model.blocks.get_submodule(f"{stage}.{index}")


def moved_stride(model: MobileNetV3) -> None:
    first, mid = (block(model, 1, 0).get_submodule(name) for name in ("dw_start.conv", "dw_mid.conv"))
    first.stride, mid.stride = 2, 1


def padded_as_tensorflow(model: MobileNetV3) -> None:
    """More zeros after the map than before it, where the stride leaves the choice."""
    stem = model.conv_stem
    how = (stem.conv.weight, stem.bias, 2, 0, 1, "relu")
    stem.forward = lambda x: kernels.conv2d_activation(F.pad(x, (0, 0, 0, 1, 0, 1)), *how)  # type: ignore[assignment]


def head_before_the_mean(model: MobileNetV3) -> None:
    blocks, head = model.blocks, model.conv_head
    model.blocks, model.conv_head = nn.Sequential(blocks, head), nn.Identity()


def activated_sum(model: MobileNetV3) -> None:
    after, forward = block(model, 2, 1), block(model, 2, 1).forward
    after.forward = lambda x: forward(x).relu()


@apart.needs("timm")
@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(block(model, 1, 1).dw_start, "activation", "relu"),
        lambda model: setattr(block(model, 1, 1).pw_proj, "activation", "relu"),
        lambda model: setattr(block(model, 1, 1).dw_mid, "activation", "none"),
        lambda model: setattr(block(model, 1, 1), "has_skip", False),
        lambda model: setattr(model.conv_head, "activation", "none"),
        activated_sum,
        moved_stride,
        padded_as_tensorflow,
        head_before_the_mean,
    ],
    ids=["start", "proj", "mid", "skip", "head", "sum", "stride", "padding", "order"],
)  # fmt: skip
def test_a_wrong_model_would_be_noticed(change: Callable[[MobileNetV3], None], wanted: list[Tensor]):
    model = MobileNetV3(TINY)
    load_weights(model, loaded()[1].items())
    change(model)
    assert difference(model, wanted) > 10 * TOLERANCE


@apart.needs("timm")
def test_another_eps_would_be_noticed(wanted: list[Tensor]):
    model = MobileNetV3(TINY | {"batch_norm_eps": 1e-3})
    load_weights(model, loaded()[1].items())
    assert difference(model, wanted) > 10 * TOLERANCE


def test_what_is_folded_already_is_taken_as_it_is():
    folded = dict(export_weights(loaded()[0]))
    assert "blocks.1.0.dw_start.conv.bias" in folded
    assert not any("bn" in name or "norm" in name for name in folded)
    again = MobileNetV3(TINY)
    load_weights(again, folded.items())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), loaded()[0].parameters(), strict=True))


def test_everything_that_does_not_fit_is_named_at_once():
    broken = dict(loaded()[1])
    del broken["bn1.running_var"], broken["blocks.2.1.dw_start.conv.weight"]
    broken["norm_head.bias"] = torch.zeros(65)
    broken["blocks.0.0.conv_exp.weight"] = torch.zeros(32, 8, 5, 5)
    broken["blocks.9.0.conv.weight"] = torch.zeros(3, 3, 1, 1)
    with pytest.raises(WeightsError) as raised:
        load_weights(MobileNetV3(TINY), broken.items())
    head, *lines = str(raised.value).splitlines()
    assert head.endswith("2 missing, 1 unexpected, 2 misshapen")
    assert [" ".join(line.split()) for line in lines] == [
        "misshapen blocks.0.0.conv_exp.weight [32, 8, 5, 5], expected [32, 8, 3, 3]",
        "misshapen norm_head.bias [65], expected [64]",
        "missing bn1.running_var, expected [8]",
        "missing blocks.2.1.dw_start.conv.weight, expected [32, 1, 3, 3]",
        "unexpected blocks.9.0.conv.weight [3, 3, 1, 1]",
    ]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("num_classes", 0, "num_classes: must be an integer"),
        ("block_args", [], "one for each stage"),
        ("block_args", [["ds_r1_k3_s1_c8"]], "must begin with one of er, uir, ir, cn"),
        ("block_args", [["er_r1_k3_s1_e1_c8_noskip"]], "'noskip' is not supported"),
        ("block_args", [["uir_r1_k3_s1_e1_c8"]], "does not say a"),
        ("block_args", [["cn_r1_k1.5_s1_c8"]], "k must be an integer"),
        ("block_args", [["cn_r1_k1_s0_c8"]], "s must not be 0"),
    ],
)
def test_configurations_that_are_refused(key: str, value: object, says: str):
    with pytest.raises(UsageError, match=says):
        MobileNetV3(TINY | {key: value})
