"""Our Swin V2 in float32 on the CPU against timm's in float64, a tiny model with randomised weights.

timm runs in a process of its own (apart.py). It initialises the norms of its branches to 0, which would hide
every block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
from fastkernels.baseline.L2 import window_attention
from fastkernels.baseline.L4.swinv2 import SwinTransformerV2, window_and_shift
from torch import Tensor, nn

from fastkernels import kernels, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.loader.materialize import prepare
from fastkernels.nn.weights import export_weights, load_weights
from tests.parity import apart

TOLERANCE = 1e-5  # of the architecture's fact sheet, of the largest value
CONFIGS = registry.architecture("swinv2").configs
TINY, FULL = CONFIGS["tiny"].config, CONFIGS["large"].config
# The size of the windows; maps of 10 and of 5, whose windows are filled up; of 14 and 7; rows unlike columns.
SIZES = [(32, 32), (40, 40), (56, 56), (52, 20)]


@lru_cache
def checkpoint() -> dict[str, Tensor]:
    """By timm's names. One scale is above the largest that counts, ln 100 = 4.6."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, tensor in export_weights(SwinTransformerV2(TINY)):
        values = torch.randn(tensor.shape, generator=generator)
        if name.endswith("logit_scale"):
            found[name] = 2.3 + 0.5 * values
            if name.startswith("layers.0.blocks.0."):
                found[name][0] = 5.5
        elif tensor.dim() > 1:
            found[name] = values * tensor[0].numel() ** -0.5
        else:
            found[name] = 0.3 * values + ("norm" in name and name.endswith("weight"))
    return found


def pixels(size: tuple[int, int]) -> Tensor:
    return torch.randn(2, *size, 3, generator=torch.Generator().manual_seed(sum(size)))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[str, Tensor]]:
    arguments = {k: v for k, v in TINY.items() if k not in ("architectures", "model_type")}
    asked = {
        "class": "swin_transformer_v2.SwinTransformerV2",
        "arguments": {**arguments, "strict_img_size": False},
        "blocks": None,
        "weights": checkpoint(),
        "images": [pixels(size).permute(0, 3, 1, 2).double() for size in SIZES],
    }
    return dict(zip(SIZES, apart.answer("timm_process", asked, tmp_path_factory.mktemp("timm"))))


def ours(weights: dict[str, Tensor] | None = None) -> SwinTransformerV2:
    model = SwinTransformerV2(TINY)
    load_weights(model, (weights or checkpoint()).items())
    prepare(model)
    return model


@torch.inference_mode()
def run(model: SwinTransformerV2, size: tuple[int, int]) -> dict[str, Tensor]:
    found = {}
    with model.norm.register_forward_hook(lambda _, args, out: found.update(features=out)):
        return {"logits": model(pixels(size)), **found}


def error(found: Tensor, wanted: Tensor) -> float:
    """Of the largest value."""
    assert found.shape == wanted.shape
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


@apart.needs("timm")
@pytest.mark.parametrize("implementation", [None, "reference", "torch"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_features_and_logits(size: tuple[int, int], implementation: str | None, expected):
    assert expected[size]["logits"].std() > 0.3, "weights too small for a strong test"
    with kernels.use(implementation):
        found = run(ours(), size)
    for name, wanted in expected[size].items():
        assert error(found[name], wanted) < TOLERANCE, name


def _first(model: SwinTransformerV2, i: int = 0) -> nn.Module:
    return model.layers[0].blocks[i].attn


def unlimited_scale(model: SwinTransformerV2) -> None:
    _first(model).scale_H[0] = math.exp(5.5)


def no_shift(model: SwinTransformerV2) -> None:
    _first(model, 1).shift_size = 0


def shift_of_the_second_stage(model: SwinTransformerV2) -> None:
    model.layers[1].blocks[1].attn.shift_size = 2


def table_over_window(model: SwinTransformerV2) -> None:
    """Offsets over W and not W - 1."""
    attn = _first(model)
    first, _, second = attn.cpb_mlp
    hidden = torch.relu(window_attention.offsets(5)[:, :2].float() @ first.weight.T + first.bias)
    whole = (16 * torch.sigmoid(hidden @ second.weight.T)).view(9, 9, -1)
    attn.table_HE.copy_(whole[1:-1, 1:-1].flatten(0, 1).T)


def table_turned(model: SwinTransformerV2) -> None:
    """Key less query."""
    attn = _first(model)
    attn.table_HE.copy_(attn.table_HE.flip(1).clone())


def key_bias(model: SwinTransformerV2) -> None:
    attn = _first(model)
    attn.qkv.bias[16:32] = attn.qkv.bias[:16]


class Normed(nn.Module):
    """The branch's input is normalised, not its output."""

    def __init__(self, norm: nn.Module, branch: nn.Module) -> None:
        super().__init__()
        self.norm, self.branch = norm, branch

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(self.norm(x))


def pre_norm(model: SwinTransformerV2) -> None:
    block = model.layers[0].blocks[0]
    block.attn, block.norm1 = Normed(block.norm1, block.attn), nn.Identity()


def norm_after_the_mean(model: SwinTransformerV2) -> None:
    model.norm.register_forward_hook(lambda module, args, out: args[0])
    model.pool = nn.Sequential(model.pool, type(model.norm)(32))
    model.pool[1].weight, model.pool[1].bias = model.norm.weight, model.norm.bias


def merged_rows_first(model: SwinTransformerV2) -> None:
    reduction = model.layers[1].downsample.reduction
    reduction.weight.copy_(reduction.weight.view(32, 4, 16)[:, [0, 2, 1, 3]].flatten(1))


def eps(model: SwinTransformerV2) -> None:
    for layer in model.layers:
        for block in layer.blocks:
            block.norm1.eps = 1e-3


@apart.needs("timm")
@pytest.mark.parametrize(
    "change",
    [
        unlimited_scale,
        no_shift,
        shift_of_the_second_stage,
        table_over_window,
        table_turned,
        key_bias,
        pre_norm,
        norm_after_the_mean,
        merged_rows_first,
        eps,
    ],
)
def test_a_wrong_model_would_be_noticed(change: Callable[..., None], expected):
    """At 40 pixels: maps of 10 and 5 rows."""
    model = ours()
    change(model)
    assert error(run(model, (40, 40))["logits"], expected[40, 40]["logits"]) > 10 * TOLERANCE


def _masked_fillers(*args: Tensor | int) -> Tensor:
    """Pixels that fill a window up hardly take part."""
    qkv, filler, scale, table, window, shift = args
    k, heads = filler.view(3, -1)[1], len(scale)
    assert not k.any()
    large = torch.cat([qkv.unflatten(-1, (3, heads, -1)), torch.ones(*qkv.shape[:3], 3, heads, 1)], -1)
    far = torch.cat(
        [filler.view(3, heads, -1), torch.tensor([0.0, -1e4, 0.0]).view(3, 1, 1).expand(3, heads, 1)], -1
    )
    found = kernels.window_attention(
        large.flatten(3), far.flatten(), scale, table, window, shift, impl="reference"
    )
    return found.unflatten(-1, (heads, -1))[..., :-1].flatten(3)


def _mask_of_another_size(*args: Tensor | int) -> Tensor:
    """That of a map of whole windows without the ones that are filled up."""
    qkv, *rest = args
    whole = qkv.shape[1] // 4 * 4
    found = kernels.window_attention(*args)
    found[:, :whole, :whole] = kernels.window_attention(qkv[:, :whole, :whole].contiguous(), *rest)
    return found


@apart.needs("timm")
@pytest.mark.parametrize("wrong", [_masked_fillers, _mask_of_another_size])
def test_wrong_windows_at_the_ends_would_be_noticed(wrong: Callable[..., Tensor], expected, monkeypatch):
    model = ours()

    class Kernels:
        window_attention = staticmethod(wrong)

    monkeypatch.setattr(window_attention, "kernels", Kernels)
    assert error(run(model, (40, 40))["logits"], expected[40, 40]["logits"]) > 10 * TOLERANCE


def test_windows_and_shifts_are_those_of_the_configuration():
    """Real: 12 and 6 in two stages, then one window of the whole map, and half as large in the last."""
    assert [window_and_shift(48 // 2**i, 12) for i in range(4)] == [(12, 6), (12, 6), (12, 0), (6, 0)]
    with torch.device("meta"):
        model = SwinTransformerV2(FULL)
    found = [[(b.attn.window_size, b.attn.shift_size) for b in layer.blocks] for layer in model.layers]
    assert found == [[(12, 0), (12, 6)], [(12, 0), (12, 6)], [(12, 0)] * 18, [(6, 0)] * 2]


def test_the_table_follows_the_weights_and_goes_by_offsets_alone():
    model = ours()
    before = [attn.table_HE.clone() for attn in (_first(model), _first(model, 1))]
    other = {name: tensor + 0.5 * (".cpb_mlp.2" in name) for name, tensor in checkpoint().items()}
    load_weights(model, other.items())
    prepare(model)
    assert all((_first(model, i).table_HE - before[i]).abs().min() > 0 for i in (0, 1))
    attn = _first(model)
    d = torch.tensor([math.copysign(math.log2(8 * abs(r) / 3 + 1) / 3, r) if r else 0 for r in range(-3, 4)])
    w0, b0, w2 = (attn.cpb_mlp[0].weight, attn.cpb_mlp[0].bias, attn.cpb_mlp[2].weight)
    for down, right in ((0, 0), (3, 5), (6, 1)):
        wanted = 16 * torch.sigmoid(w2 @ torch.relu(w0 @ torch.stack([d[down], d[right]]) + b0))
        torch.testing.assert_close(attn.table_HE[:, 7 * down + right], wanted, rtol=1e-5, atol=1e-5)


def test_tables_and_scales_of_16_bits_are_float32():
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        half = SwinTransformerV2(TINY)
    finally:
        torch.set_default_dtype(previous)
    load_weights(half, checkpoint().items())
    prepare(half)
    found, wanted = _first(half), _first(ours())
    assert found.table_HE.dtype == found.scale_H.dtype == torch.float32
    assert (found.table_HE - wanted.table_HE).abs().max() < 0.1  # of parameters of 8 bits, and no more
    assert found.scale_H[0] == wanted.scale_H[0] == pytest.approx(100)


def test_names_and_shapes_of_the_real_checkpoint():
    with torch.device("meta"):
        model = SwinTransformerV2(FULL)
    found = {name: list(tensor.shape) for name, tensor in export_weights(model)}
    wanted = {"patch_embed.proj.weight": [192, 3, 4, 4], "head.fc.weight": [21841, 1536]}
    wanted |= {"patch_embed.proj.bias": [192], "head.fc.bias": [21841]}
    wanted |= {f"{norm}.{kind}": [width] for norm, width in (("patch_embed.norm", 192), ("norm", 1536))
               for kind in ("weight", "bias")}  # fmt: skip
    for s, (depth, heads) in enumerate(zip((2, 2, 18, 2), (6, 12, 24, 48))):
        c = 32 * heads
        if s:
            wanted[f"layers.{s}.downsample.reduction.weight"] = [c, 2 * c]
            wanted |= {f"layers.{s}.downsample.norm.{kind}": [c] for kind in ("weight", "bias")}
        for j in range(depth):
            shapes = {
                "attn.logit_scale": [heads, 1, 1], "attn.q_bias": [c], "attn.v_bias": [c],
                "attn.cpb_mlp.0.weight": [512, 2], "attn.cpb_mlp.0.bias": [512],
                "attn.cpb_mlp.2.weight": [heads, 512], "attn.qkv.weight": [3 * c, c],
                "attn.proj.weight": [c, c], "attn.proj.bias": [c],
                "mlp.fc1.weight": [4 * c, c], "mlp.fc1.bias": [4 * c],
                "mlp.fc2.weight": [c, 4 * c], "mlp.fc2.bias": [c],
                **{f"norm{i}.{kind}": [c] for i in (1, 2) for kind in ("weight", "bias")},
            }  # fmt: skip
            wanted |= {f"layers.{s}.blocks.{j}.{name}": shape for name, shape in shapes.items()}
    assert found == wanted
    # Ours has rows of zeros for the keys' bias.
    assert sum(math.prod(shape) for shape in found.values()) == 228_772_549
    assert sum(tensor.numel() for tensor in checkpoint().values()) == 47_494


def test_everything_that_does_not_fit_is_named_at_once():
    attn = "layers.0.blocks.1.attn"
    broken = dict(checkpoint())
    del broken[f"{attn}.v_bias"]
    broken |= {f"{attn}.logit_scale": torch.zeros(2), f"{attn}.k_bias": torch.zeros(16)}
    with pytest.raises(WeightsError) as raised:
        load_weights(SwinTransformerV2(TINY), broken.items())
    head, *lines = str(raised.value).splitlines()
    assert head.endswith("1 missing, 1 unexpected, 1 misshapen")
    assert [" ".join(line.split()) for line in lines] == [
        f"misshapen {attn}.logit_scale [2], expected [2, 1, 1]",
        f"missing {attn}.v_bias, expected [16]",
        f"unexpected {attn}.k_bias [16]",
    ]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"global_pool": "max"}, "global_pool"),
        ({"qkv_bias": False}, "qkv_bias"),
        ({"pretrained_window_sizes": [6, 6]}, "pretrained_window_sizes"),
        ({"num_heads": [2]}, "num_heads: has 1 stages, depths 2"),
        ({"num_heads": [2, 5]}, "5 heads do not divide 32 channels"),
        ({"window_size": None}, "window_size: is missing"),
    ],
)
def test_configurations_that_are_refused(changed: dict[str, object], says: str):
    with pytest.raises(UsageError, match=says):
        SwinTransformerV2(TINY | changed)
