"""Our Point Transformer V3 against its equations in float64 (ptv3_equations.py), float32 on the CPU, a tiny
backbone with randomised weights and statistics, several clouds."""

from __future__ import annotations

import copy
import json
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.point_transformer_v3 import PointTransformerV3
from safetensors.torch import save_file
from torch import Tensor

from fastkernels import Model, kernels, registry
from fastkernels.errors import RequestError, UsageError, WeightsError
from fastkernels.kernels.serialize import ORDERS
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model
from fastkernels.nn.clouds import Clouds
from fastkernels.nn.program import Place
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights
from tests.parity.ptv3_equations import WRONG, Backbone, code

TOLERANCE = 2e-6 / 0.57  # of the deviation of features: from the architecture's fact sheet, where it is 0.57
EXACT = 1e-12  # in float64
CONFIGS = {name: one.config for name, one in registry.architecture("point_transformer_v3").configs.items()}
# All four curves at two levels; in the decoder a block behind the one that reads what is carried.
DEEPER = {**CONFIGS["tiny"], "enc_depths": [4, 4, 2], "dec_depths": [2, 2]}
PARAMETERS = {"scannet": 46_166_272, "tiny": 484_752}
SIZES = (150, 53, 11)  # the last is shorter than a patch


@lru_cache
def ours() -> PointTransformerV3:
    model = PointTransformerV3(DEEPER)
    random_weights(model, seed=0)
    return model


@lru_cache
def weights() -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in export_weights(ours())}


def clouds(sizes: tuple[int, ...] = SIZES, seed: int = 1) -> tuple[list[Tensor], list[Tensor]]:
    """Features and coordinates of each. All have the same bits; the first fills a half of its box."""
    generator = torch.Generator().manual_seed(seed)
    cells = [torch.randperm(7 * 9 * 5, generator=generator)[:size] for size in sizes]
    grids = [torch.stack((cell // 45, cell // 5 % 9, cell % 5), 1) for cell in cells]
    for grid in grids:
        grid[0] = torch.tensor((3, 11, 2))
    return [torch.randn(size, 6, generator=generator) for size in sizes], grids


def called(model: PointTransformerV3, feats: list[Tensor], grids: list[Tensor]) -> Tensor:
    batching = Clouds(6, 3, Place(torch.device("cpu"), feats[0].dtype))
    crossing, counts, depth = batching.join([batching.read(call) for call in zip(feats, grids)])
    with torch.inference_mode():
        return model(*crossing.tensors(), counts, depth)


@lru_cache
def answer(wrong: str = "") -> Tensor:
    feats, grids = clouds()
    backbone = Backbone({name: each.double() for name, each in weights().items()}, DEEPER, wrong)
    return backbone(torch.cat(feats).double(), grids)


def error(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    return float((found.double() - wanted.double()).abs().max() / wanted.double().std())


def test_features_are_those_of_the_equations():
    wanted = answer()
    assert (wanted - wanted.mean(0)).std() > 0.3, "weights too small for a strong test"
    assert error(called(ours(), *clouds()), wanted) <= TOLERANCE
    exact, (feats, grids) = copy.deepcopy(ours()).double(), clouds()
    with kernels.use("reference"):
        found = called(exact, [feat.double() for feat in feats], grids)
    assert error(found, wanted) <= EXACT


@pytest.mark.parametrize("wrong", WRONG)
def test_what_implementations_get_wrong_would_show(wrong: str):
    assert error(called(ours(), *clouds()), answer(wrong)) > 10 * TOLERANCE


def test_a_cloud_alone_is_as_production_cuts_it_without_flash_attention():
    feats, grids = clouds()
    named = {name: each.double() for name, each in weights().items()}
    backbone = Backbone(named, DEEPER, "patches as long as the shortest cloud")
    wanted = backbone(feats[1].double(), grids[1:2])
    assert error(called(ours(), feats[1:2], grids[1:2]), wanted) <= TOLERANCE


def test_clouds_do_not_meet_and_the_order_of_voxels_is_no_matter():
    feats, grids = clouds()
    together = called(ours(), feats, grids)
    alone = [called(ours(), [feat], [grid]) for feat, grid in zip(feats, grids)]
    assert error(torch.cat(alone), together) <= TOLERANCE
    order = torch.randperm(SIZES[0], generator=torch.Generator().manual_seed(3))
    permuted = called(ours(), [feats[0][order]], [grids[0][order]])
    assert error(permuted, alone[0][order]) <= TOLERANCE


def test_codes_of_all_curves():
    grid = torch.cartesian_prod(*[torch.arange(8)] * 3)
    codes, order, inverse = kernels.serialize(grid, torch.zeros(512, dtype=torch.int64), 3, ORDERS)
    assert codes.tolist() == [[code(curve, axes, 3) for axes in grid.tolist()] for curve in ORDERS]
    assert torch.equal(codes.gather(1, order), torch.arange(512).expand(4, -1))
    assert torch.equal(order.gather(1, inverse), torch.arange(512).expand(4, -1))
    path = grid[order[ORDERS.index("hilbert")]].tolist()
    assert path[:4] == [[0, 0, 0], [1, 0, 0], [1, 0, 1], [0, 0, 1]]
    assert all(sum(abs(a - b) for a, b in zip(*pair)) == 1 for pair in pairwise(path))


# ---------------------------------------------------------------- checkpoints


def names(config: dict[str, Any]) -> dict[str, list[int]]:
    """Tensors of the backbone's state dict, from the layout that its fact sheet gives."""
    found: dict[str, list[int]] = {}

    def add(name: str, *shape: int) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = list(shape), [shape[0]]

    def add_norm(name: str, width: int) -> None:
        add(name, width)
        found[f"{name}.running_mean"] = found[f"{name}.running_var"] = [width]

    def add_blocks(part: str, s: int) -> None:
        width = config[f"{part}_channels"][s]
        for i in range(config[f"{part}_depths"][s]):
            at = f"{part}.{part}{s}.block{i}"
            add(f"{at}.cpe.0", width, 3, 3, 3, width)
            for name in ("cpe.1", "attn.proj"):
                add(f"{at}.{name}", width, width)
            for name in ("cpe.2", "norm1.0", "norm2.0"):
                add(f"{at}.{name}", width)
            add(f"{at}.attn.qkv", 3 * width, width)
            add(f"{at}.mlp.0.fc1", 4 * width, width)
            add(f"{at}.mlp.0.fc2", width, 4 * width)

    widths = config["enc_channels"]
    found["embedding.stem.conv.weight"] = [widths[0], 5, 5, 5, 6]
    add_norm("embedding.stem.norm", widths[0])
    for s, width in enumerate(widths):
        if s:
            add(f"enc.enc{s}.down.proj", width, widths[s - 1])
            add_norm(f"enc.enc{s}.down.norm.0", width)
        add_blocks("enc", s)
    coarser = [*config["dec_channels"][1:], widths[-1]]
    for s, width in enumerate(config["dec_channels"]):
        for name, inputs in (("proj", coarser[s]), ("proj_skip", widths[s])):
            add(f"dec.dec{s}.up.{name}.0", width, inputs)
            add_norm(f"dec.dec{s}.up.{name}.1", width)
        add_blocks("dec", s)
    return found


@pytest.mark.parametrize("name", PARAMETERS)
def test_names_shapes_and_number_of_a_checkpoint(name: str):
    with torch.device("meta"):
        model = PointTransformerV3(CONFIGS[name])
    places, unnamed = destinations(model)
    assert not unnamed
    assert {name: list(place.shape) for name, place in places.items()} == names(CONFIGS[name])
    assert model.weight_map.ignores("module.backbone.embedding.stem.norm.num_batches_tracked")
    statistics = sum(each.numel() for name, each in model.named_parameters() if ".running_" in name)
    assert sum(each.numel() for each in model.parameters()) - statistics == PARAMETERS[name]


@pytest.mark.parametrize("prefix", ["", "module.backbone."])
def test_a_folder_with_missing_surplus_and_misshapen_tensors(tmp_path, prefix: str):
    given = {prefix + name: each for name, each in weights().items()}
    (tmp_path / "config.json").write_text(json.dumps(DEEPER))
    given[f"{prefix}enc.enc1.down.norm.0.num_batches_tracked"] = torch.zeros(1)
    save_file(given, tmp_path / "model.safetensors")
    loaded = load_model(find(tmp_path), Overlay.over_baseline(), torch.device("cpu"), torch.float32, 0)
    assert torch.equal(called(loaded, *clouds()), called(ours(), *clouds()))
    del given[f"{prefix}enc.enc0.block1.cpe.0.bias"]
    given[f"{prefix}dec.dec0.up.proj.1.running_var"] = torch.zeros(3)
    given[f"{prefix}enc.enc1.block0.cpe.0.weight"] = torch.zeros(32, 5, 3, 3, 32)
    given[f"{prefix}enc.enc3.down.proj.bias"] = torch.zeros(3)
    save_file(given, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as caught:
        load_model(find(tmp_path), Overlay.over_baseline(), torch.device("cpu"), torch.float32, 0)
    for named in (
        "enc0.block1.cpe.0.bias",
        "dec0.up.proj.1.running_var",
        "enc1.block0.cpe.0.weight",
        "enc3.down",
    ):
        assert named in str(caught.value)


# ---------------------------------------------------------------- the engine


@lru_cache
def served() -> Model:
    return Model("point_transformer_v3", config="tiny", device="cpu", seed=0)


def requests() -> list[dict[str, Tensor]]:
    return [{"feat": feat, "grid_coord": grid} for feat, grid in zip(*clouds())]


def test_requests_are_answered_as_alone():
    asked = requests()
    asked.append({"feat": asked[1]["feat"], "grid_coord": 2 * asked[1]["grid_coord"]})  # of one bit more
    for one, found in zip(asked, served().run(asked)):
        wanted = called(served().model, [one["feat"]], [one["grid_coord"]])
        assert error(found["feat"], wanted) <= TOLERANCE
    assert served().stats()["forward"]["calls"] == 2


BAD = {
    r"grid_coord must be int64 or int32 \[voxels, 3\]": {"grid_coord": torch.zeros(9, 2, dtype=torch.int64)},
    "a cloud of 0 voxels": {"grid_coord": torch.zeros(0, 3, dtype=torch.int64)},
    "grid_coord has 1 voxels twice": {"grid_coord": torch.tensor([[9, 1, 2], [1, 2, 3], [1, 2, 3]])},
    "grid_coord goes from -1 to 3": {"grid_coord": torch.tensor([[1, 2, 3], [1, 2, -1], [1, 1, 1]])},
    "has a coordinate of at least 2": {"grid_coord": torch.tensor([[0, 0, 0], [0, 0, 1], [0, 1, 0]])},
    r"feat must be floats \[3, 6\]": {"feat": torch.zeros(3, 5)},
    "feat has values that are not finite": {"feat": torch.full((3, 6), torch.nan)},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_request_is_refused_and_harms_no_other(message: str):
    good = {"feat": torch.ones(3, 6), "grid_coord": torch.tensor([[1, 2, 3], [3, 1, 2], [0, 0, 0]])}
    refused, found = served().run([{**good, **BAD[message]}, good], errors="return")
    with pytest.raises(RequestError, match=message):
        raise refused
    assert torch.equal(found["feat"], served().run([good])[0]["feat"])


REFUSED = {
    "stride: must be 2": {"stride": [2, 4]},
    "order: 'x' is not supported": {"order": ["z", "x"]},
    "order: must be different curves": {"order": ["z", "z"]},
    "enc_depths: must have 3 entries": {"enc_depths": [1, 1]},
    "dec_channels: 30 are not 4 heads": {"dec_channels": [32, 30]},
    "enable_rpe: True is not supported": {"enable_rpe": True},
    "shuffle_orders: True is not supported": {"shuffle_orders": True},
    "pre_norm: false": {"pre_norm": False},
    "mlp_ratio: is missing": {"mlp_ratio": None},
}


@pytest.mark.parametrize("message", REFUSED)
def test_another_backbone_is_refused_by_its_key(message: str):
    with torch.device("meta"), pytest.raises(UsageError, match=message):
        PointTransformerV3({**CONFIGS["tiny"], **REFUSED[message]})
