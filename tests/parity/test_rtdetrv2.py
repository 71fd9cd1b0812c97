"""Our RT-DETRv2 against transformers, float32 on the CPU, a tiny model with random weights and statistics.

As the reference begins, boxes are not refined and all points of a query lie at one place: here nothing is 0
or 1. The reference's maps have their channels second, and its norms stand as they are. Nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from fastkernels.baseline.L1.pool import MaxPool2d
from fastkernels.baseline.L3.detr import positions
from fastkernels.baseline.L4.rtdetrv2 import RTDetrV2ForObjectDetection, anchors, spatial_shapes
from torch import Tensor, nn
from transformers import RTDetrResNetConfig, RTDetrV2Config
from transformers import RTDetrV2ForObjectDetection as HfRTDetrV2

from fastkernels import kernels, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.folding import Folding
from fastkernels.nn.weights import export_weights, load_weights

TOLERANCE = 1e-5  # of the architecture's fact sheet: of boxes, and of other values by the largest
CONFIGS = {name: one.config for name, one in registry.architecture("rtdetrv2").configs.items()}
TINY = CONFIGS["tiny"]
BACKBONE = TINY["backbone_config"]
SIZES = [(2, 96, 128), (1, 160, 160)]
LAST = f"class_embed.{TINY['decoder_layers'] - 1}"


def reference(config: dict[str, Any] = TINY) -> HfRTDetrV2:
    known = {key: value for key, value in config.items() if key not in ("architectures", "dtype")}
    backbone = RTDetrResNetConfig(**known.pop("backbone_config"))
    return HfRTDetrV2(RTDetrV2Config(**known, backbone_config=backbone)).eval()


@lru_cache
def checkpoint() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    found: dict[str, Tensor] = {}
    for name, tensor in reference().state_dict().items():
        kind = name.rpartition(".")[2]
        if f"model.decoder.{name}" in found:  # the same heads under their other name
            found[name] = found[f"model.decoder.{name}"]
        elif kind in ("num_batches_tracked", "n_points_scale"):
            found[name] = tensor
        elif kind == "running_var" or (kind == "weight" and tensor.dim() == 1):
            found[name] = torch.rand(tensor.shape, generator=generator) + 0.5
        elif tensor.dim() == 1:
            found[name] = torch.randn(tensor.shape, generator=generator) * 0.3
        else:
            gain = 0.8 if tensor.dim() == 4 else 1.2  # maps of scale 1, where SiLU bends
            std = gain * tensor[0].numel() ** -0.5
            found[name] = torch.randn(tensor.shape, generator=generator) * std
    return found


def pixels(size: tuple[int, int, int]) -> Tensor:
    return torch.rand(*size, 3, generator=torch.Generator().manual_seed(sum(size)))


@lru_cache
def expected(size: tuple[int, int, int]) -> dict[str, Tensor]:
    model = reference()
    model.load_state_dict(checkpoint(), strict=True)
    with torch.inference_mode():
        out = model(pixels(size).permute(0, 3, 1, 2))
    maps = {f"map {i}": x.permute(0, 2, 3, 1) for i, x in enumerate(out.encoder_last_hidden_state)}
    assert (out.enc_topk_bboxes - out.pred_boxes).abs().max() > 0.1, "boxes hardly move: a weak test"
    return maps | {
        "chosen logits": out.enc_topk_logits,
        "chosen boxes": out.enc_topk_bboxes,
        "logits": out.logits,
        "boxes": out.pred_boxes,
    }


def ours(config: dict[str, Any] = TINY) -> RTDetrV2ForObjectDetection:
    model = RTDetrV2ForObjectDetection(config)
    load_weights(model, checkpoint().items())
    return model


def errors(model: RTDetrV2ForObjectDetection, size: tuple[int, int, int]) -> dict[str, float]:
    """Of each result of the reference, in its order of queries."""
    found: dict[str, Any] = {}
    model.encoder.register_forward_hook(lambda _, args, out: found.update(maps=out))
    model.decoder.register_forward_pre_hook(lambda _, args: found.update(boxes=args[2]))
    with torch.inference_mode():
        memory, output, logits = model(pixels(size))
        cells = model.select(logits)
        last_logits, boxes = model.decode(memory, output, cells, spatial_shapes(*size[1:]))
    chosen = logits.gather(1, cells[..., None].expand(-1, -1, logits.shape[-1]))
    results = {f"map {i}": x for i, x in enumerate(found["maps"])}
    results |= {
        "chosen logits": chosen,
        "chosen boxes": found["boxes"],
        "logits": last_logits,
        "boxes": boxes,
    }
    wanted = expected(size)
    assert results.keys() == wanted.keys()
    return {name: error(results[name], wanted[name]) for name in wanted}


def error(found: Tensor, wanted: Tensor) -> float:
    """Boxes lie within 0 .. 1."""
    assert found.shape == wanted.shape
    return ((found - wanted).abs().max() / wanted.abs().max().clamp(min=1)).item()


@pytest.mark.parametrize("implementation", [None, "reference", "torch"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_maps_queries_and_boxes(size: tuple[int, int, int], implementation: str | None):
    assert expected(size)["logits"].std() > 0.3, "weights too small for a strong test"
    with kernels.use(implementation):
        found = errors(ours(), size)
    assert max(found.values()) < TOLERANCE, found


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.backbone.stages[1][0], "pooler", MaxPool2d(2, 2)),
        lambda model: setattr(model.backbone.stages[2][1], "activation", nn.Identity()),
        lambda model: setattr(model.backbone.embedder[1], "activation", "none"),
        lambda model: setattr(model.encoder, "temperature", 20.0),
        lambda model: setattr(model.encoder.aifi[0].final_layer_norm, "eps", 1e-2),
        lambda model: setattr(model.encoder.pan_blocks[1].bottlenecks[2], "activation", "relu"),
        lambda model: setattr(model.decoder.layers[1].encoder_attn, "offset_scale", 1.0),
        lambda model: setattr(model.decoder.layers[0].encoder_attn, "n_points", 3),
        lambda model: setattr(model.decoder.layers[0].self_attn.attn, "scale", 1.0),
        lambda model: model.decoder.bbox_head[0].layers[2].linear.weight.zero_(),
        lambda model: setattr(model.decoder.refine, "forward", lambda deltas, boxes: deltas.sigmoid()),
        lambda model: model.decoder.query_pos_head.layers[1].linear.weight.mul_(0.99),
        lambda model: model.encoder.fpn_blocks[0].bottlenecks[1].bias.add_(0.01),
    ],
)
def test_a_wrong_model_would_be_noticed(change: Callable[[Any], Any]):
    model = ours()
    change(model)
    assert max(errors(model, SIZES[0]).values()) > 10 * TOLERANCE


def test_another_eps_of_the_norms_would_be_noticed():
    model = RTDetrV2ForObjectDetection(TINY)
    known = model.weight_map.folding
    assert isinstance(known, Folding)
    object.__setattr__(known, "eps", 1e-3)
    load_weights(model, checkpoint().items())
    assert max(errors(model, SIZES[0]).values()) > 10 * TOLERANCE


@pytest.mark.parametrize("size", [(96, 128), (160, 160), (416, 544)], ids=str)
def test_anchors_and_positions_are_the_references(size: tuple[int, int]):
    """Cells at the border are not valid; there the reference has an infinite logit, ours the box 1."""
    shapes = spatial_shapes(*size)
    boxes, is_valid = anchors(shapes, torch.empty(0))
    theirs: Any = reference()
    wanted, was_valid = theirs.model.generate_anchors(tuple(map(tuple, shapes)))
    assert torch.equal(is_valid, was_valid[0])
    assert 0 < is_valid.sum() < len(is_valid) or size[0] < 400
    torch.testing.assert_close(boxes.logit()[is_valid[:, 0]], wanted[0][is_valid[:, 0]], rtol=0, atol=1e-5)
    rows, columns = shapes[2]
    placed = theirs.model.encoder.aifi[0].position_embedding(
        columns, rows, torch.device("cpu"), torch.float64
    )[0]
    found = positions(rows, columns, TINY["encoder_hidden_dim"], 10000.0, torch.device("cpu"))
    torch.testing.assert_close(found, placed, rtol=0, atol=1e-12)


def test_a_row_of_a_batch_is_what_it_is_alone():
    model, images = ours(), pixels((3, 64, 96))
    with torch.inference_mode():
        together = model.detect(images)
        alone = torch.cat([model.detect(image[None]) for image in images])
    assert (together[..., 5] >= 0).sum() > 10
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-3)


def test_detections_are_the_best_class_of_the_best_queries():
    size = SIZES[0]
    wanted = expected(size)
    scores, labels = wanted["logits"].sigmoid().max(-1)
    order = scores.argsort(dim=-1, descending=True)
    with torch.inference_mode():
        found = ours().detect(pixels(size))
    for image in range(size[0]):
        taken = order[image][scores[image][order[image]] > 0.25]
        assert found[image, : len(taken), 5].tolist() == labels[image][taken].tolist()
        torch.testing.assert_close(found[image, : len(taken), 4], scores[image][taken], rtol=0, atol=1e-5)
        x, y, width, height = wanted["boxes"][image][taken].unbind(-1)
        corners = torch.stack((x - width / 2, y - height / 2, x + width / 2, y + height / 2), -1)
        corners *= torch.tensor([size[2], size[1], size[2], size[1]])
        torch.testing.assert_close(found[image, : len(taken), :4], corners, rtol=0, atol=2e-3)
        assert (found[image, len(taken) :, 5] == -1).all()


def test_older_names_and_single_heads():
    """Files of the hub: `encoder.encoder`, `out_proj`, `fc1`; heads under either name."""
    older = {}
    for name, tensor in checkpoint().items():
        name = name.replace("encoder.aifi.", "encoder.encoder.").replace(".o_proj.", ".out_proj.")
        name = name.replace(".mlp.fc", ".fc")
        if not name.startswith("model.decoder.bbox_embed"):
            older[name] = tensor
    model = RTDetrV2ForObjectDetection(TINY)
    load_weights(model, older.items())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), ours().parameters(), strict=True))


def test_what_is_folded_already_is_taken_as_it_is():
    folded = dict(export_weights(ours()))
    assert not any(".norm" in name and ".bottlenecks." in name for name in folded)
    again = RTDetrV2ForObjectDetection(TINY)
    load_weights(again, folded.items())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours().parameters(), strict=True))


def test_a_checkpoint_that_does_not_fit_is_told_by_its_names():
    broken = dict(checkpoint())
    for name in (f"{LAST}.weight", f"model.decoder.{LAST}.weight"):
        del broken[name]
    del broken["model.encoder.pan_blocks.0.bottlenecks.1.conv2.norm.running_mean"]
    shortcut = "model.backbone.model.encoder.stages.1.layers.0.shortcut.1.convolution.weight"
    broken[shortcut] = torch.zeros(3, 3, 1, 1)
    broken["model.decoder.layers.2.mlp.fc1.weight"] = torch.zeros(2, 2)
    with pytest.raises(WeightsError) as raised:
        load_weights(RTDetrV2ForObjectDetection(TINY), broken.items())
    said = str(raised.value)
    for part in (
        f"missing     model.decoder.{LAST}.weight, expected [7, 32]",
        "missing     model.encoder.pan_blocks.0.bottlenecks.1.conv2.norm.running_mean",
        f"misshapen   {shortcut} [3, 3, 1, 1]",
        "unexpected  model.decoder.layers.2.mlp.fc1.weight [2, 2]",
    ):
        assert part in said, said


def test_float16_is_finite():
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        model = RTDetrV2ForObjectDetection(TINY)
    finally:
        torch.set_default_dtype(previous)
    load_weights(model, checkpoint().items())
    with torch.inference_mode():
        found = model.detect(pixels(SIZES[1]).half())
    assert found.isfinite().all()
    assert (found[..., 5] >= 0).any()


@pytest.mark.parametrize(("name", "published"), [("r101vd", 76_556_268), ("tiny", 469_593 + 8 * 32)])
def test_parameter_counts(name: str, published: int):
    """As published, less what is folded (gains, smaller filters of RepVGG blocks) and what training alone
    reads; of frozen norms shifts, which are no parameters there. The fact sheet counts the tiny one without
    its embedding for denoising."""
    config = CONFIGS[name]
    with torch.device("meta"):
        theirs, model = reference(config), RTDetrV2ForObjectDetection(config)
    assert sum(parameter.numel() for parameter in theirs.parameters()) == published
    last = config["decoder_layers"] - 1
    gone = rf"denoising|bottlenecks\.\d\.conv2|(\.norm|_proj\.\d\.1)\.weight|class_embed\.(?!{last}\.)"
    wanted = sum(p.numel() for name, p in theirs.named_parameters() if not re.search(gone, name))
    wanted += sum(shift.numel() for name, shift in theirs.named_buffers() if name.endswith("tion.bias"))
    assert sum(parameter.numel() for parameter in model.parameters()) == wanted


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("decoder_method", "discrete", "decoder_method: 'discrete' is not supported; supported: 'default'"),
        ("normalize_before", True, "normalize_before"),
        ("batch_norm_eps", 1e-3, "batch_norm_eps"),
        ("encoder_in_channels", [48, 64, 128], r"\[48, 64, 128\].*supported: \[48, 64, 96\]"),
        ("encoder_hidden_dim", 50, "encoder_hidden_dim: 50 is no multiple of encoder_attention_heads, 4"),
        ("d_model", 30, "d_model: 30 is no multiple of decoder_attention_heads, 4"),
        ("num_queries", 0, "num_queries"),
        ("decoder_activation_function", "tanh", "decoder_activation_function"),
        ("backbone_config", BACKBONE | {"layer_type": "basic"}, "backbone_config.layer_type: 'basic'"),
        ("backbone_config", BACKBONE | {"depths": [1, 1, 2]}, "backbone_config.depths"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)  # fmt: skip
def test_configurations_that_are_refused(key: str, value: object, says: str):
    with pytest.raises(UsageError, match=says):
        RTDetrV2ForObjectDetection(TINY | {key: value})
