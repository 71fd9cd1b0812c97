"""Our ConvNeXt V2 against transformers, float32 on the CPU, a tiny model with randomised weights.

The reference's maps have their channels second. References are built in code; nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fastkernels.baseline.L1.activation import GELU
from fastkernels.baseline.L4.convnextv2 import ConvNextV2ForImageClassification
from torch import Tensor, nn
from transformers import ConvNextV2Config
from transformers import ConvNextV2ForImageClassification as HfConvNextV2

from fastkernels import kernels, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.weights import export_weights, load_weights

TOLERANCE = 1e-5  # of the architecture's fact sheet, of the largest value
TINY = registry.architecture("convnextv2").configs["tiny"].config
SIZES = [(48, 64), (33, 47)]  # whole patches and maps, and odd ones, of which the last rows fall away
# What makes every map's values a thousandth, so that an epsilon of 1e-6 weighs as much as a variance.
QUIET = ("patch_embeddings.", "embeddings.layernorm.", "pwconv2.", "downsampling_layer.1.", "dwconv.")


def reference(config: dict[str, Any] = TINY) -> HfConvNextV2:
    known = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    return HfConvNextV2(ConvNextV2Config(**known)).eval()


@lru_cache
def checkpoint(quiet: bool = False) -> dict[str, Tensor]:
    """Nothing is 0 or 1 as the reference initialises it: it would hide the response norm."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, tensor in reference().state_dict().items():
        values = torch.randn(tensor.shape, generator=generator)
        is_matrix = tensor.dim() > 1 and ".grn." not in name
        found[name] = values * tensor[0].numel() ** -0.5 if is_matrix else values * 0.3
        if "norm.weight" in name or "layer.0.weight" in name:
            found[name] = 1 + found[name].clamp(-0.5, 0.5)
        if "pwconv" in name:  # so that the blocks weigh as much as what goes past them
            found[name] *= 1.5
        if quiet and any(part in name for part in QUIET):
            found[name] *= 1e-3
    return found


@lru_cache
def expected(size: tuple[int, int], quiet: bool = False) -> list[Tensor]:
    """Maps of the stages, channels last, what the classifier takes, and logits."""
    model = reference()
    model.load_state_dict(checkpoint(quiet), strict=True)
    with torch.inference_mode():
        *maps, pooled, logits = noted(
            [*model.convnextv2.encoder.stages, model.convnextv2.layernorm, model.classifier],
            lambda: model(pixels(size).permute(0, 3, 1, 2)),
        )
    return [*(one.permute(0, 2, 3, 1) for one in maps), pooled, logits]


def noted(modules: list[nn.Module], call: Callable[[], object]) -> list[Tensor]:
    """What the modules return in a call, in the order in which they are called."""
    found: list[Tensor] = []
    hooks = [module.register_forward_hook(lambda _, args, out: found.append(out)) for module in modules]
    call()
    for hook in hooks:
        hook.remove()
    return found


def pixels(size: tuple[int, int]) -> Tensor:
    return torch.randn(3, *size, 3, generator=torch.Generator().manual_seed(sum(size)))


def ours(quiet: bool = False) -> ConvNextV2ForImageClassification:
    model = ConvNextV2ForImageClassification(TINY)
    load_weights(model, checkpoint(quiet).items())
    return model


def error(found: Tensor, wanted: Tensor) -> float:
    """Of the largest value."""
    assert found.shape == wanted.shape
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


@pytest.mark.parametrize("quiet", [False, True], ids=["", "quiet"])
@pytest.mark.parametrize("implementation", [None, "reference", "torch"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_maps_of_all_stages_pooled_features_and_logits(
    size: tuple[int, int], implementation: str | None, quiet: bool
):
    wanted, model = expected(size, quiet), ours(quiet)
    assert wanted[-1].std() > 0.3, "weights too small for a strong test"
    with torch.inference_mode(), kernels.use(implementation):
        parts = [*model.encoder, model.layernorm, model.classifier]
        found = noted(parts, lambda: model(pixels(size)))
    assert len(found) == len(wanted) == 5
    assert max(map(error, found, wanted)) < TOLERANCE


class Responds(nn.Module):
    """A response norm by a formula of (h, norm, weight, bias)."""

    def __init__(self, grn: nn.Module, formula: Callable[..., Tensor], dims: tuple[int, int]) -> None:
        super().__init__()
        self.grn, self.formula, self.dims = grn, formula, dims

    def forward(self, h: Tensor) -> Tensor:
        g = h.square().sum(self.dims, keepdim=True).sqrt()
        n = g / (g.mean(tuple({1, 2, 3} - set(self.dims)), keepdim=True) + 1e-6)
        return self.formula(h, n, self.grn.weight, self.grn.bias)


def _responds(formula: Callable[..., Tensor], dims: tuple[int, int] = (1, 2)) -> Callable[..., None]:
    def change(model: ConvNextV2ForImageClassification) -> None:
        layer = model.encoder[1].layers[0]
        layer.grn = Responds(layer.grn, formula, dims)

    return change


def right(h: Tensor, n: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return weight * (h * n) + bias + h


def norm_before_the_mean(model: ConvNextV2ForImageClassification) -> None:
    model.pool, model.layernorm = nn.Sequential(model.layernorm, model.pool), nn.Identity()


def gelu_by_tanh(model: ConvNextV2ForImageClassification) -> None:
    for stage in model.encoder:
        for layer in stage.layers:
            layer.act = GELU("tanh")


def _eps(name: str, value: float) -> Callable[..., None]:
    return lambda model: setattr(model.get_submodule(name), "eps", value)


@pytest.mark.parametrize(
    ("change", "quiet"),
    [
        (_responds(right, dims=(2, 3)), False),
        (_responds(lambda h, n, weight, bias: weight * (h * n) + bias), False),
        (_responds(lambda h, n, weight, bias: weight * (h * n) + h), False),
        (gelu_by_tanh, False),
        (norm_before_the_mean, False),
        (_eps("embeddings.layernorm", 1e-12), True),
        (_eps("encoder.0.layers.0.layernorm", 1e-12), True),
        (_eps("encoder.1.downsampling_layer.0", 1e-12), True),
        (_eps("layernorm", 1e-6), True),
    ],
    ids=["axes", "residual", "bias", "tanh", "norm-first", "eps-stem", "eps-block", "eps-step", "eps-end"],
)  # fmt: skip
def test_a_wrong_model_would_be_noticed(change: Callable[..., None], quiet: bool):
    model = ours(quiet)
    change(model)
    with torch.inference_mode():
        assert error(model(pixels(SIZES[0])), expected(SIZES[0], quiet)[-1]) > 10 * TOLERANCE


def test_the_formula_that_is_changed_above_is_the_right_one():
    model = ours()
    _responds(right)(model)
    with torch.inference_mode():
        assert error(model(pixels(SIZES[0])), expected(SIZES[0])[-1]) < TOLERANCE


def test_names_and_shapes_of_the_real_checkpoint():
    config = registry.architecture("convnextv2").configs["base"].config
    with torch.device("meta"):
        model, theirs = ConvNextV2ForImageClassification(config), reference(config)
    wanted = {name: list(tensor.shape) for name, tensor in theirs.state_dict().items()}
    assert {name: list(tensor.shape) for name, tensor in export_weights(model)} == wanted
    assert wanted["convnextv2.encoder.stages.2.layers.26.grn.bias"] == [1, 1, 1, 2048]
    assert sum(parameter.numel() for parameter in model.parameters()) == 88_717_800
    assert (
        sum(parameter.numel() for parameter in ConvNextV2ForImageClassification(TINY).parameters()) == 54_954
    )


def test_everything_that_does_not_fit_is_named_at_once():
    broken = dict(checkpoint())
    grn = "convnextv2.encoder.stages.0.layers.0.grn"
    del broken["classifier.bias"]
    broken |= {f"{grn}.weight": torch.zeros(64), f"{grn}.gain": torch.zeros(1)}
    with pytest.raises(WeightsError) as raised:
        load_weights(ConvNextV2ForImageClassification(TINY), broken.items())
    head, *lines = str(raised.value).splitlines()
    assert head.endswith("1 missing, 1 unexpected, 1 misshapen")
    assert [" ".join(line.split()) for line in lines] == [
        f"misshapen {grn}.weight [64], expected [1, 1, 1, 64]",
        "missing classifier.bias, expected [10]",
        f"unexpected {grn}.gain [1]",
    ]


def test_a_folder_of_transformers_is_served(tmp_path: Path):
    """Its configuration names classes and does not count them."""
    from fastkernels import Model

    theirs = reference()
    theirs.load_state_dict(checkpoint())
    theirs.save_pretrained(tmp_path)
    image = torch.randint(256, (48, 64, 3), generator=torch.Generator().manual_seed(0)).byte()
    (found,) = Model(str(tmp_path), device="cpu").run([{"image": image}])
    mean, std = (
        torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    with torch.inference_mode():
        wanted = theirs(((image.permute(2, 0, 1) / 255 - mean) / std)[None]).logits[0]
    assert error(found["logits"], wanted) < TOLERANCE


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"depths": [1, 2]}, "depths: has 2 stages, hidden_sizes 3"),
        ({"hidden_sizes": [16, 0, 48]}, "hidden_sizes: must be a list of positive integers"),
        ({"num_labels": 0}, "num_labels: must be an integer of at least 1"),
    ],
)
def test_configurations_that_are_refused(changed: dict[str, object], says: str):
    with pytest.raises(UsageError, match=says):
        ConvNextV2ForImageClassification(TINY | changed)
