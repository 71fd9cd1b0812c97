"""Our YOLOv10-N in float32 on the CPU, its norms folded, against its equations in float64 (norms as they
stand).

The published implementation is under the AGPL and never needed: where it is installed (EXTRAS of
the Makefile), a process of its own says what it finds with the same weights. The number of parameters is its
own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from fastkernels.baseline.L4.yolov10 import YOLOv10
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.weights import export_weights, load_weights
from tests.parity import apart
from tests.parity.yolov10_equations import Equations, best

FULL = {"depth_multiple": 0.33, "width_multiple": 0.25, "max_channels": 1024, "num_classes": 80}
TINY = FULL | {"width_multiple": 0.125, "num_classes": 4}
PIXELS, SCORES = 1e-3, 1e-5  # tolerances of the architecture's fact sheet
DFL = 16  # parameters of the published model that are constants here: the bins


@lru_cache
def checkpoint() -> dict[str, Tensor]:
    """An unfolded checkpoint with random filters and statistics: what the folded names stand for."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Tensor] = {}
    for name, tensor in export_weights(YOLOv10(TINY)):
        if name.endswith(".conv.weight"):
            convolutions = {name.removesuffix(".conv.weight"): tensor.shape}
            if "cv1.2." in name and name.startswith(
                "model.model.22"
            ):  # the sum of a large and a small filter
                large = name.removesuffix(".weight")
                convolutions = {large: tensor.shape, f"{large}1": (*tensor.shape[:2], 3, 3)}
            for convolution, shape in convolutions.items():
                fan_in = shape[1] * shape[2] * shape[3]
                found[f"{convolution}.conv.weight"] = torch.randn(shape, generator=generator) * fan_in**-0.5
                found |= norm(f"{convolution}.bn", shape[0], generator)
        elif not name.endswith(".conv.bias"):  # the last convolutions of the head have no norm
            found[name] = torch.randn(tensor.shape, generator=generator) * max(1, tensor[0].numel()) ** -0.5
    return found


def norm(name: str, channels: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Statistics far from those of no norm, 0 and 1."""
    gain, shift, mean = (torch.randn(channels, generator=generator) for _ in range(3))
    variance = torch.logspace(-1, 0, channels)[torch.randperm(channels, generator=generator)]
    return {
        f"{name}.weight": gain * 0.1 + 0.7,
        f"{name}.bias": shift * 0.3,
        f"{name}.running_mean": mean * 0.05,
        f"{name}.running_var": variance,
        f"{name}.num_batches_tracked": torch.tensor(7),
    }


@lru_cache
def ours() -> YOLOv10:
    model = YOLOv10(TINY)
    load_weights(model, checkpoint().items())
    return model


def pixels(batch: int, height: int, width: int) -> Tensor:
    return torch.rand(batch, height, width, 3, generator=torch.Generator().manual_seed(height * width))


def differences(
    model: YOLOv10, images: Tensor, weights: dict[str, Tensor] | None = None
) -> tuple[float, float]:
    """The largest of boxes, in pixels, and of scores."""
    wanted_boxes, wanted_scores = Equations(checkpoint(), TINY["num_classes"])(images)
    with torch.inference_mode():
        boxes, logits = model(images)
    assert boxes.shape == wanted_boxes.shape
    assert logits.shape == wanted_scores.shape
    return (boxes - wanted_boxes).abs().max().item(), (logits.sigmoid() - wanted_scores).abs().max().item()


@pytest.mark.parametrize("implementation", [None, "reference", "torch"])
@pytest.mark.parametrize("size", [(2, 64, 96), (1, 32, 32), (3, 32, 160)], ids=str)
def test_boxes_and_scores_of_all_cells(size: tuple[int, int, int], implementation: str | None):
    images = pixels(*size)
    boxes, scores = Equations(checkpoint(), TINY["num_classes"])(images)
    assert scores.std() > 0.05, "weights too small for a strong test"
    assert boxes.std(1).min() > 5
    with kernels.use(implementation):
        box, score = differences(ours(), images)
    assert box < PIXELS
    assert score < SCORES


@apart.needs("ultralytics")
@pytest.mark.parametrize("size", [(2, 64, 96), (1, 160, 32)], ids=str)
def test_detections_are_those_of_the_published_implementation(size: tuple[int, int, int], tmp_path: Path):
    images = pixels(*size)
    weights = {name.removeprefix("model."): tensor for name, tensor in checkpoint().items()}
    asked = {"config": TINY, "weights": weights, "images": images}
    found_BK6 = apart.answer("ultralytics_process", asked, tmp_path)
    with torch.inference_mode():
        boxes, scores, labels = ours().select(*ours()(images))
    assert boxes.shape == found_BK6[..., :4].shape
    assert scores.std() > 0.05, "weights too small for a strong test"
    assert torch.equal(labels.double(), found_BK6[..., 5])
    assert (boxes - found_BK6[..., :4]).abs().max() < PIXELS
    assert (scores - found_BK6[..., 4]).abs().max() < SCORES


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.backbone.down4.cv2, "activation", "silu"),
        lambda model: setattr(model.backbone.attention.attn.pe, "activation", "silu"),
        lambda model: setattr(model.backbone.attention.attn.attend, "scale", 64**-0.5),
        lambda model: setattr(model.neck.out4.m[0], "shortcut", True),
        lambda model: setattr(model.neck.out5.m[0], "shortcut", False),
        lambda model: setattr(model.head.decode[2], "stride", 16),
        lambda model: setattr(model.backbone.pool, "pool", nn.Identity()),
    ],
    ids=["scdown", "pe", "scale", "shortcut", "no-shortcut", "stride", "pool"],
)  # fmt: skip
def test_a_wrong_model_would_be_noticed(change: Callable[[YOLOv10], None]):
    model = YOLOv10(TINY)
    load_weights(model, checkpoint().items())
    change(model)
    box, score = differences(model, pixels(2, 64, 96))
    assert box > 10 * PIXELS or score > 10 * SCORES


@pytest.mark.parametrize("eps", [1e-5, 2e-3])
def test_another_eps_would_be_noticed(eps: float):
    model = YOLOv10(TINY | {"batch_norm_eps": eps})
    load_weights(model, checkpoint().items())
    box, _ = differences(model, pixels(1, 64, 96))
    assert box > 10 * PIXELS


def test_the_best_are_those_of_a_sort():
    boxes, scores = Equations(checkpoint(), TINY["num_classes"])(pixels(2, 64, 96))
    logits = scores.logit().float()
    for implementation in ("reference", "torch"):
        with kernels.use(implementation):
            found, found_scores, labels = ours().select(boxes.float(), logits)
        assert found.shape == (2, 126, 4)
        for i in range(2):
            wanted = best(logits[i], 126)  # all cells: fewer than 300
            assert labels[i].tolist() == [label for _, label in wanted]
            assert torch.equal(found[i], boxes[i, [cell for cell, _ in wanted]].float())
            torch.testing.assert_close(found_scores[i], scores[i][tuple(zip(*wanted))].float())


def test_what_is_folded_already_is_taken_as_it_is():
    folded = dict(export_weights(ours()))
    assert not any(".bn." in name for name in folded)
    again = YOLOv10(TINY)
    load_weights(again, folded.items())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours().parameters(), strict=True))


def test_names_of_the_modules_own_files_and_the_other_head():
    """`model.` where the hub has `model.model.`, and tensors of the head that is left out."""
    own = {name.replace("model.model.", "model.", 1): tensor for name, tensor in checkpoint().items()}
    generator = torch.Generator().manual_seed(1)
    for branch, below in (("cv2.0.1", ""), ("cv3.2.0", ".1")):
        own[f"model.23.{branch}{below}.conv.weight"] = torch.randn(8, 8, 1, 1, generator=generator)
        own |= norm(f"model.23.{branch}{below}.bn", 8, generator)
    own["model.23.cv2.1.2.weight"], own["model.23.cv3.1.2.bias"] = torch.zeros(64, 64, 1, 1), torch.zeros(4)
    own["model.23.dfl.conv.weight"] = torch.arange(16.0).view(1, 16, 1, 1)
    model = YOLOv10(TINY)
    load_weights(model, own.items())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), ours().parameters(), strict=True))


@pytest.mark.parametrize(
    ("left_out", "says"),
    [
        (
            "model.model.3.bn.running_var",
            r"1 missing\n  missing     model\.model\.3\.bn\.running_var, expected \[32\]$",
        ),
        (
            "model.model.22.m.0.cv1.2.conv1",
            r"2 missing(?s:.*)model\.model\.22\.m\.0\.cv1\.2\.conv1\.conv\.weight, which is added to",
        ),
        ("model.model.16.cv2", r"model\.model\.16\.cv2\.conv\.weight"),
    ],
)
def test_a_checkpoint_that_is_not_whole(left_out: str, says: str):
    rest = [(name, tensor) for name, tensor in checkpoint().items() if not name.startswith(left_out)]
    with pytest.raises(WeightsError, match=says):
        load_weights(YOLOv10(TINY), rest)


def test_everything_that_does_not_fit_is_named_at_once():
    """Of an unfolded checkpoint, by the names that it has or should have."""
    broken = dict(checkpoint())
    small = "model.model.22.m.0.cv1.2.conv1.conv.weight"
    del broken["model.model.3.bn.running_var"], broken["model.model.5.cv1.bn.weight"]
    broken["model.model.1.bn.bias"] = torch.zeros(17)
    broken["model.model.0.conv.weight"] = torch.zeros(9, 3, 3, 3)
    broken[small] = torch.zeros(*broken[small].shape[:2], 2, 2)
    broken["model.model.99.cv1.conv.weight"] = torch.zeros(3, 3, 1, 1)
    with pytest.raises(WeightsError) as raised:
        load_weights(YOLOv10(TINY), broken.items())
    head, *lines = str(raised.value).splitlines()
    assert head.endswith("2 missing, 1 unexpected, 3 misshapen")
    assert [" ".join(line.split()) for line in lines] == [
        "misshapen model.model.0.conv.weight [9, 3, 3, 3], expected [8, 3, 3, 3]",
        "misshapen model.model.1.bn.bias [17], expected [16]",
        f"misshapen {small} {list(broken[small].shape)} cannot be added to "
        f"{small.replace('conv1', 'conv')} {list(checkpoint()[small.replace('conv1', 'conv')].shape)}",
        "missing model.model.3.bn.running_var, expected [32]",
        "missing model.model.5.cv1.bn.weight, expected [64]",
        "unexpected model.model.99.cv1.conv.weight [3, 3, 1, 1]",
    ]


def test_statistics_are_folded_before_they_are_rounded():
    """float16 would lose a small variance, and its product with a filter twice."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        half = YOLOv10(TINY)
    finally:
        torch.set_default_dtype(previous)
    load_weights(half, checkpoint().items())
    for rounded, exact in zip(half.parameters(), ours().parameters(), strict=True):
        assert torch.equal(rounded, exact.half())


def test_parameter_counts():
    """Full: as published at inference, less the bins."""
    for config, count in ((FULL, 2_299_264 - DFL), (TINY, 732_492)):
        with torch.device("meta"):
            model = YOLOv10(config)
        assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize(("key", "value"), [("width_multiple", None), ("num_classes", 0), ("reg_max", "16")])
def test_configurations_that_are_refused(key: str, value: object):
    with pytest.raises(UsageError, match=key):
        YOLOv10(TINY | {key: value})
