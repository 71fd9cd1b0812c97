"""Our DINOv3 against transformers, and that against timm; float32 on the CPU, a tiny model with randomised
weights. References are built in code; nothing is fetched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
from fastkernels.baseline.L1.axial_rope import ApplyAxialRope, AxialRopeTable
from fastkernels.baseline.L4.dinov3 import DINOv3ViTModel
from torch import Tensor
from transformers import DINOv3ViTConfig
from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTModel as HfDINOv3

from fastkernels import registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights, load_weights
from tests.parity import apart

TOLERANCE = 1e-5  # of values of size 1, from the architecture's fact sheet
TINY = registry.architecture("dinov3").configs["tiny"].config
REAL = registry.architecture("dinov3").configs["7b"].config
SIZES = [(64, 64), (64, 96), (16, 48)]
PREFIX = 5  # class token and registers
Found = dict[str, Tensor]


@lru_cache
def ours() -> DINOv3ViTModel:
    """Gammas lie within 0.5 .. 1.5: with those of a fresh model no block would show."""
    model = DINOv3ViTModel(TINY)
    random_weights(model, seed=0)
    return model


@lru_cache
def reference() -> HfDINOv3:
    fields = {key: value for key, value in TINY.items() if key not in ("architectures", "model_type")}
    model = HfDINOv3._from_config(DINOv3ViTConfig(**fields), attn_implementation="sdpa").eval()
    model.load_state_dict(weights(), strict=True)
    return model


def weights() -> Found:
    mask = {"embeddings.mask_token": torch.zeros(1, 1, TINY["hidden_size"])}
    return mask | dict(export_weights(ours()))


def pixels(size: tuple[int, int], images: int = 2) -> Tensor:
    return torch.randn(images, *size, 3, generator=torch.Generator().manual_seed(sum(size)))


@torch.inference_mode()
def run(model: DINOv3ViTModel, pixels_BYXC: Tensor) -> Found:
    seen: list[Tensor] = []
    hook = model.norm.register_forward_hook(lambda module, args, y: seen.append(y))
    features, class_token = model(pixels_BYXC)
    hook.remove()
    return {
        "last": seen[0].view(len(pixels_BYXC), -1, seen[0].shape[-1]),
        "features": features,
        "class": class_token,
    }


@lru_cache
@torch.inference_mode()
def expected(size: tuple[int, int]) -> Found:
    out = reference()(pixels(size).permute(0, 3, 1, 2))
    last = out.last_hidden_state
    return {"last": last, "features": last[:, PREFIX:].mean(1), "class": out.pooler_output}


def errors(found: Found, wanted: Found) -> dict[str, float]:
    return {name: (found[name] - wanted[name]).abs().max().item() for name in wanted}


@pytest.mark.parametrize("size", SIZES)
def test_all_tokens_the_class_token_and_the_mean(size: tuple[int, int]) -> None:
    assert expected(size)["last"].std() > 0.5, "weights too small for a strong test"
    assert max(errors(run(ours(), pixels(size)), expected(size)).values()) < TOLERANCE


def _swap_tokens(model: DINOv3ViTModel) -> None:
    """Registers first, then the class token."""
    both = torch.cat((model.patches.register_tokens, model.patches.cls_token), 1)
    model.patches.cls_token.copy_(both[:, :1])
    model.patches.register_tokens.copy_(both[:, 1:])


def _turn_all_tokens(model: DINOv3ViTModel) -> None:
    """Class token and registers stand at a corner."""
    table = AxialRopeTable(16, 100.0, 0)
    model.rope_embeddings.forward = lambda coords: table(torch.cat((coords[:1].expand(PREFIX, 2), coords)))


def _whole_places(model: DINOv3ViTModel) -> None:
    model.patch_coords = lambda h, w, device: torch.cartesian_prod(
        torch.arange(h // 16, dtype=torch.float32), torch.arange(w // 16, dtype=torch.float32)
    )


def _shared_range(model: DINOv3ViTModel) -> None:
    """One range for both axes: the longer side's."""
    own = model.patch_coords
    model.patch_coords = lambda h, w, device: own(h, w, device) * torch.tensor([h, w]) / max(h, w)


def _without_two_pi(model: DINOv3ViTModel) -> None:
    own = model.patch_coords
    model.patch_coords = lambda *given: own(*given) / (2 * math.pi)


def _half_precision_table(model: DINOv3ViTModel) -> None:
    own = model.rope_embeddings.forward
    model.rope_embeddings.forward = lambda coords: own(coords).bfloat16().float()


def _scale_the_residual(model: DINOv3ViTModel) -> None:
    for layer in model.layers:
        layer.fuses = False
        scale = layer.layer_scale1
        scale.forward = lambda x, residual, gamma=scale.lambda1: x + gamma * residual


def _no_scale(model: DINOv3ViTModel) -> None:
    for layer in model.layers:
        layer.layer_scale2.lambda1.fill_(1)


def _wrong_epsilon(model: DINOv3ViTModel) -> None:
    for layer in model.layers:
        layer.norm1.eps = layer.norm2.eps = 1e-3


def _up_before_gate(model: DINOv3ViTModel) -> None:
    for layer in model.layers:
        first = layer.mlp.gate_up_proj.linear
        for parameter in (first.weight, first.bias):
            parameter.copy_(parameter.roll(len(parameter) // 2, 0))


def _no_bias(model: DINOv3ViTModel) -> None:
    for layer in model.layers:
        layer.mlp.gate_up_proj.linear.bias.zero_()


WRONG = [
    _swap_tokens,
    _turn_all_tokens,
    _whole_places,
    _shared_range,
    _without_two_pi,
    _half_precision_table,
    _scale_the_residual,
    _no_scale,
    _wrong_epsilon,
    _up_before_gate,
    _no_bias,
]


@pytest.mark.parametrize("change", WRONG, ids=lambda change: change.__name__)
@torch.inference_mode()
def test_a_wrong_model_would_be_noticed(change: Callable[[DINOv3ViTModel], None]) -> None:
    model = DINOv3ViTModel(TINY)
    load_weights(model, weights().items())
    change(model)
    assert max(errors(run(model, pixels((64, 96))), expected((64, 96))).values()) > 10 * TOLERANCE


@torch.inference_mode()
def test_registers_have_no_order() -> None:
    model = DINOv3ViTModel(TINY)
    load_weights(model, weights().items())
    model.patches.register_tokens.copy_(model.patches.register_tokens.flip(1).clone())
    found, wanted = run(model, pixels((64, 96))), run(ours(), pixels((64, 96)))
    torch.testing.assert_close(found["features"], wanted["features"], rtol=0, atol=TOLERANCE)
    assert (found["last"] - wanted["last"]).abs().max() > 0.1, "the registers are alike"


def test_the_table_by_its_formula() -> None:
    rows, columns, head = 3, 5, 16
    with torch.device("meta"):
        model = DINOv3ViTModel(TINY)
    coords = model.patch_coords(16 * rows, 16 * columns, torch.device("cpu"))
    found = AxialRopeTable(head, 100.0, PREFIX)(coords)
    assert found.dtype == torch.float32
    wanted = []
    for row in range(rows):
        for column in range(columns):
            places = (2 * (row + 0.5) / rows - 1, 2 * (column + 0.5) / columns - 1)
            angles = [2 * math.pi * c / 100 ** (2 * i / (head / 2)) for c in places for i in range(head // 4)]
            wanted.append([*map(math.cos, angles), *map(math.sin, angles)])
    assert (found[PREFIX:].double() - torch.tensor(wanted, dtype=torch.float64)).abs().max() < 1e-6
    assert torch.equal(
        found[:PREFIX], torch.tensor([1.0, 0.0]).repeat_interleave(head // 2).expand(PREFIX, head)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_first_tokens_are_not_turned(dtype: torch.dtype) -> None:
    """Not by a bit; in a model of 16 bits, too, the table has float32."""
    torch.set_default_dtype(dtype)
    try:
        table = AxialRopeTable(16, 100.0, PREFIX)(torch.rand(4, 2, dtype=torch.float32) * 2 - 1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert table.dtype == torch.float32
    q, k = torch.randn(2, 9, 4, 16).to(dtype)
    for before, after in zip((q, k), ApplyAxialRope()(q, k, table, torch.arange(9))):
        assert torch.equal(before[:PREFIX], after[:PREFIX])
        assert not torch.isclose(before[PREFIX:], after[PREFIX:]).all()


def timm_weights() -> Found:
    """Ours by the names of timm, which packs q, k and v and not gate and up."""
    own = dict(ours().state_dict())
    found = {
        "cls_token": own["patches.cls_token"],
        "reg_token": own["patches.register_tokens"],
        "patch_embed.proj.weight": own["patches.weight"].permute(0, 3, 1, 2),
        "patch_embed.proj.bias": own["patches.bias"],
        "norm.weight": own["norm.weight"],
        "norm.bias": own["norm.bias"],
    }
    for i in range(TINY["num_hidden_layers"]):
        theirs, mine = f"blocks.{i}", f"layers.{i}"
        found[f"{theirs}.gamma_1"] = own[f"{mine}.layer_scale1.lambda1"]
        found[f"{theirs}.gamma_2"] = own[f"{mine}.layer_scale2.lambda1"]
        found[f"{theirs}.attn.qkv.weight"] = own[f"{mine}.attention.qkv_proj.linear.weight"]
        for kind in ("weight", "bias"):
            for norm in ("norm1", "norm2"):
                found[f"{theirs}.{norm}.{kind}"] = own[f"{mine}.{norm}.{kind}"]
            found[f"{theirs}.attn.proj.{kind}"] = own[f"{mine}.attention.o_proj.linear.{kind}"]
            gate, up = own[f"{mine}.mlp.gate_up_proj.linear.{kind}"].chunk(2)
            found[f"{theirs}.mlp.fc1_g.{kind}"], found[f"{theirs}.mlp.fc1_x.{kind}"] = gate, up
            found[f"{theirs}.mlp.fc2.{kind}"] = own[f"{mine}.mlp.down_proj.linear.{kind}"]
    return {name: tensor.clone() for name, tensor in found.items()}


@apart.needs("timm")
def test_timm_says_the_same(tmp_path) -> None:
    """Its pooling is the mean of the patches."""
    arguments = {
        "img_size": 64,
        "patch_size": 16,
        "dynamic_img_size": True,
        "embed_dim": 64,
        "depth": 2,
        "num_heads": 4,
        "qkv_bias": False,
        "mlp_ratio": 2,
        "init_values": 1e-5,
        "rope_type": "dinov3",
        "rope_temperature": 100,
        "use_rot_pos_emb": True,
        "use_abs_pos_emb": False,
        "rope_rotate_half": True,
        "swiglu_mlp": True,
        "swiglu_align_to": 64,
        "num_reg_tokens": 4,
        "use_fc_norm": False,
        "eps": 1e-5,
        "num_classes": 0,
    }
    sizes = [(64, 64), (64, 96)]
    images = [pixels(size).permute(0, 3, 1, 2).double() for size in sizes]
    asked = {
        "class": "eva.Eva",
        "arguments": arguments,
        "blocks": None,
        "weights": timm_weights(),
        "images": images,
    }
    for size, theirs in zip(sizes, apart.answer("timm_process", asked, tmp_path)):
        found = run(ours(), pixels(size))
        wanted = {"last": theirs["features"], "features": theirs["logits"]}
        assert max(errors(found, wanted).values()) < TOLERANCE


def test_weights_of_a_file() -> None:
    """By both spellings of the blocks; what is missing is named."""
    file = weights()
    for names in (lambda name: name, lambda name: name.removeprefix("model.")):
        model = DINOv3ViTModel(TINY)
        load_weights(model, ((names(name), tensor) for name, tensor in file.items()))
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), ours().parameters(), strict=True))
    with pytest.raises(WeightsError, match=r"layer\.1\.layer_scale2\.lambda1"):
        load_weights(model, ((n, t) for n, t in file.items() if n != "model.layer.1.layer_scale2.lambda1"))
    with pytest.raises(WeightsError, match=r"unexpected.*q_proj\.bias"):
        load_weights(model, [*file.items(), ("model.layer.0.attention.q_proj.bias", torch.zeros(64))])


def test_every_tensor_of_the_real_checkpoint_has_its_place() -> None:
    fields = {key: value for key, value in REAL.items() if key not in ("architectures", "model_type")}
    with torch.device("meta"):
        theirs, model = HfDINOv3(DINOv3ViTConfig(**fields)), DINOv3ViTModel(REAL)
    places, unnamed = destinations(model)
    wanted = {name: list(tensor.shape) for name, tensor in theirs.state_dict().items()}
    mask = wanted.pop("embeddings.mask_token")
    assert not unnamed
    assert {name: place.shape for name, place in places.items()} == wanted
    assert model.weight_map.ignores("embeddings.mask_token")
    own = sum(parameter.numel() for parameter in model.parameters())
    assert own == 6_716_030_976
    assert own + math.prod(mask) == 6_716_035_072
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in DINOv3ViTModel(TINY).parameters()) == 133_120


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_attention_heads": 5}, "hidden_size: 64 is no multiple of 4 times num_attention_heads, 5"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported"),
        ({"use_gated_mlp": False}, "use_gated_mlp: false is not supported"),
        ({"query_bias": True}, "query_bias: True is not supported"),
        ({"num_register_tokens": -1}, "num_register_tokens: must be an integer of at least 0"),
        ({"patch_size": [16, 16]}, "patch_size: must be an integer"),
    ],
)
def test_configurations_that_are_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        DINOv3ViTModel(TINY | change)
