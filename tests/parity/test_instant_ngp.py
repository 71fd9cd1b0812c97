"""Our renderer against its equations in float64, pixel by pixel, float32 on the CPU; its invariants;
snapshots as the reference writes them. The reference itself needs a GPU and its sources."""

from __future__ import annotations

import json
import struct
import zlib
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.instant_ngp import InstantNGP
from safetensors.torch import save_file
from torch import Tensor

from fastkernels import Model, registry
from fastkernels.errors import FileFormatError, RequestError, UsageError, WeightsError
from fastkernels.kernels.occupancy import morton
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.splats import look_at_middle
from fastkernels.loader.weights import find, load_model
from fastkernels.nn.occupancy import of_densities, packed
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights
from tests.parity.radiance_equations import Field

TOLERANCE = 2e-5  # of linear colours
TINY: dict[str, Any] = registry.architecture("instant_ngp").configs["tiny"].config
ENCODING = {**TINY["encoding"], "per_level_scale": 1.4}
SMALL = {**TINY, "width": 6, "height": 5, "offset": [0.5, 0.4, 0.6], "encoding": ENCODING}
FEW = 4  # every so many pixels
K = torch.tensor([[5.0, 0, 3.25], [0, 5.5, 2.25], [0, 0, 1]])


@lru_cache
def model() -> InstantNGP:
    """Densities as in a scene, but colours that depend on directions, too."""
    made = InstantNGP(SMALL)
    random_weights(made, seed=3)
    made.tracer.network.pos_encoding.hash_table.mul_(1 / 12)
    made.tracer.network.density_network.weights[-1][0] *= 3
    return made


def transforms() -> Tensor:
    """[2, 4, 4] of NeRF cameras: one in the scene's box, one outside it that sees edges of the box."""
    near, far = look_at_middle(0.7, 2.0), look_at_middle(3.9, 14.0)
    found = torch.stack([torch.linalg.inv(near), torch.linalg.inv(far)])
    found[:, :3, 1:3] *= -1
    return found


def views() -> Tensor:
    turned = transforms()
    turned[:, :3, 1:3] *= -1
    return torch.linalg.inv(turned)


def exactly() -> InstantNGP:
    """The same model in float64."""
    made = InstantNGP(SMALL)
    made.load_state_dict(model().state_dict())
    return made.double()


@torch.inference_mode()
def ours(made: InstantNGP) -> Tensor:
    """[2, pixels, 4]"""
    dtype = made.tracer.network.pos_encoding.hash_table.dtype
    return made(views().to(dtype), K.to(dtype).expand(2, 3, 3)).flatten(1, 2)


@lru_cache
def exact(wrong: str = "") -> Tensor:
    field, every = Field(SMALL, dict(export_weights(model())), wrong), FEW if wrong else 1
    return torch.stack([field.image(each, K.double(), every) for each in transforms()])


def error(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    return float((found.double() - wanted).abs().max())


def test_images_agree_with_the_equations():
    wanted = exact()
    assert float(wanted[0].std(0).min()) > 0.02, "an empty image is no strong test"
    assert error(ours(model()), wanted) <= TOLERANCE


def test_in_float64_nothing_is_left():
    assert error(ours(exactly()), exact()) <= 1e-12


@pytest.mark.parametrize(
    "wrong",
    [
        "axes as they are",
        "corners of pixels",
        "no jitter",
        "jitter by columns",
        "steps of one length",
        "cells of the box",
        "cells row by row",
        "everything is occupied",
        "positions as they are",
        "nodes without half",
        "floor of the scale",
        "always hashed",
        "levels share rows",
        "signs of harmonics",
        "directions halved",
        "directions first",
        "the last is density",
        "sRGB of samples",
        "ended before the sample",
        "not divided at the end",
    ],
)
def test_a_wrong_renderer_would_be_noticed(wrong: str):
    assert error(ours(model())[:, ::FEW], exact(wrong)) > 10 * TOLERANCE


# ---------------------------------------------------------------- invariants


def rays(made: InstantNGP) -> tuple[Tensor, ...]:
    turned = torch.linalg.inv(views()[:1])[:, [1, 2, 0]]
    turned[..., 3] = 0.2 * turned[..., 3] + 0.5
    wide = K.double() * torch.tensor([[2.0], [2.0], [1.0]])
    return made.init_rays(turned, wide[None], 12, 10, 2, 1 / 256)


def test_an_image_depends_on_no_round_and_no_company(monkeypatch):
    made = exactly()
    cast, tracer = rays(made), made.tracer
    whole = tracer(*cast)
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(1))
    assert error(tracer(*(part[order] for part in cast)), whole[order]) <= 1e-13
    monkeypatch.setattr("fastkernels.baseline.L3.nerf_renderer.MOST_STEPS", 3)
    assert error(tracer(*cast), whole) <= 1e-13
    assert error(tracer(*(part[5:9] for part in cast)), whole[5:9]) <= 1e-13


def test_an_empty_scene_is_its_background_and_fog_follows_its_law():
    made = InstantNGP({**SMALL, "background_color": [0.2, 0.4, 0.6, 1]})
    made.load_state_dict(model().state_dict())
    cast, tracer = rays(made.double()), made.tracer
    tracer.density_grid.zero_()
    assert error(tracer(*cast), torch.tensor([0.2, 0.4, 0.6, 1.0]).double().expand(120, 4)) <= 1e-7
    tracer.density_grid.fill_(255)
    tracer.background_color = [0, 0, 0, 0]
    for weight in tracer.network.density_network.weights:
        weight.zero_()  # a density of exp(0)
    origins, directions, *_ = cast
    walls = torch.where(directions > 0, 1.5 - origins, -0.5 - origins) / directions
    alpha = 1 - torch.exp(-walls.amin(-1))
    longest = 2 * walls.amin(-1).clamp_min(3**0.5 / 4) / 256
    assert bool(((tracer(*cast)[:, 3] - alpha).abs() <= longest).all())


def test_cells_lie_in_mortons_order_and_coarse_ones_cover_fine_ones():
    side, axis = 8, torch.arange(8)
    dense = torch.rand(2, side, side, side, generator=torch.Generator().manual_seed(0)) < 0.1
    grid = packed(dense)
    bits = (grid[..., None] >> torch.arange(8) & 1).bool().flatten(1)
    places = morton(*torch.meshgrid(axis, axis, axis, indexing="ij"))
    assert torch.equal(bits[0, places], dense[0])
    below = bits[1, places]
    for x, y, z in dense[0].nonzero().tolist():
        assert bool(below[2 + x // 2, 2 + y // 2, 2 + z // 2])
    assert torch.equal(below[:2], dense[1, :2])
    assert torch.equal(of_densities(bits.half()), grid)


# ---------------------------------------------------------------- requests


def request(angle: float = 0.3) -> dict[str, Tensor]:
    intrinsics = torch.tensor([[9.0, 0, 6.5], [0, 9, 5], [0, 0, 1]])
    return {"viewmat": look_at_middle(angle, 3.5), "intrinsics": intrinsics}


def test_requests_are_served_alike_in_company_and_bad_ones_refused_alone():
    served = Model("instant_ngp", config="tiny")
    alone = [served.run([request(angle)])[0]["rgba"] for angle in (0.3, 2.0, 4.0)]
    bad = {**request(), "viewmat": 2 * request()["viewmat"]}
    *found, refused = served.run([*(request(angle) for angle in (0.3, 2.0, 4.0)), bad], errors="return")
    assert isinstance(refused, RequestError)
    assert "viewmat ends with the row" in str(refused)
    assert alone[0].shape == (10, 13, 4)
    for one, wanted in zip(found, alone, strict=True):
        torch.testing.assert_close(one["rgba"], wanted, rtol=0, atol=1e-5)


# ---------------------------------------------------------------- checkpoints


def written(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SMALL, **changes}))
    return folder


def loaded(folder: Path) -> InstantNGP:
    overlay, cpu = Overlay.over_baseline(), torch.device("cpu")
    return load_model(find(str(folder)), overlay, cpu, torch.float32, seed=0)  # type: ignore[return-value]


def message(value: Any) -> bytes:
    """MessagePack."""
    if isinstance(value, dict):
        return struct.pack(">BH", 0xDE, len(value)) + b"".join(
            map(message, (x for pair in value.items() for x in pair))
        )
    if isinstance(value, list):
        return bytes([0x90 | len(value)]) + b"".join(map(message, value))
    if isinstance(value, str):
        return bytes([0xA0 | len(value)]) + value.encode()
    if isinstance(value, bytes):
        return struct.pack(">BI", 0xC6, len(value)) + value
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    return struct.pack(">Bi", 0xD2, value)


def snapshot(made: InstantNGP, kind: str = "float") -> dict[str, Any]:
    """As the reference saves it: matrices padded to 16 rows, densities of cells."""
    tensors = dict(export_weights(made))
    names = [*sorted(name for name in tensors if name.endswith(".weight")), "grid.table"]
    names = [*names[3:5], *names[:3], "grid.table"]  # the density network first
    flat = []
    for name in names:
        rows = -len(tensors[name]) % 16 if name.endswith(".weight") else 0
        flat.append(torch.nn.functional.pad(tensors[name], (0, 0, 0, rows), value=9.0).flatten())
    bits = (tensors["density_grid"][..., None] >> torch.arange(8) & 1).flatten(1)
    params = torch.cat(flat).to(torch.float16 if kind == "__half" else torch.float32)
    return {
        "encoding": {"otype": "HashGrid"},
        "snapshot": {
            "aabb": {"min": [0.0, -1.5], "max": [1.0, 2.5]},
            "training_step": 50,
            "params_type": kind,
            "params_binary": params.numpy().tobytes(),
            "density_grid_size": 32,
            "density_grid_binary": bits.flatten().half().numpy().tobytes(),
        },
    }


@pytest.mark.parametrize("kind", ["float", "__half"])
def test_snapshots_and_safetensors_give_the_same_scene(kind: str, tmp_path: Path):
    made = model()
    folder = written(tmp_path / "snapshot")
    (folder / "fox.ingp").write_bytes(zlib.compress(message(snapshot(made, kind))))
    tensors = {name: value.clone() for name, value in export_weights(made)}
    save_file(tensors, written(tmp_path / "tensors") / "model.safetensors")
    most = 0.0 if kind == "float" else 2e-3
    for folder, allowed in ((tmp_path / "snapshot", most), (tmp_path / "tensors", 0.0)):
        for (name, wanted), found in zip(made.named_parameters(), loaded(folder).parameters(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=allowed, atol=allowed, msg=name)


def test_snapshots_that_do_not_fit_are_named(tmp_path: Path):
    content = snapshot(model())
    content["snapshot"]["params_binary"] += bytes(8)
    content["snapshot"]["density_grid_binary"] += bytes(2)
    file = written(tmp_path / "wrong") / "fox.ingp"
    file.write_bytes(zlib.compress(message(content)))
    with pytest.raises(WeightsError) as raised:
        loaded(file.parent)
    assert {" ".join(line.split()) for line in str(raised.value).splitlines()[1:]} == {
        "misshapen params_binary [8578], expected [8576]",
        "misshapen density_grid_binary [65537], expected [65536]",
    }
    for broken in (
        b"no snapshot",
        zlib.compress(message({"snapshot": {}})),
        zlib.compress(message(content))[:99],
    ):
        file.write_bytes(broken)
        with pytest.raises(FileFormatError, match="no snapshot of a radiance field"):
            loaded(file.parent)


def test_the_real_configuration_has_the_sheets_numbers():
    with torch.device("meta"):
        real = InstantNGP(find("instant_ngp", "fox").config)
    places, unnamed = destinations(real)
    assert not unnamed
    assert {name: place.shape for name, place in places.items()} == {
        "density.0.weight": [64, 32], "density.1.weight": [16, 64],
        "colour.0.weight": [64, 32], "colour.1.weight": [64, 64], "colour.2.weight": [3, 64],
        "grid.table": [3213824, 4], "density_grid": [3, 262144],
    }  # fmt: skip
    padded = sum(p.numel() for p in real.parameters() if p.is_floating_point()) + 13 * 64
    assert padded == 12_865_536
    levels = real.tracer.network.pos_encoding.levels
    assert levels.resolutions[:7] == [16, 40, 96, 232, 566, 1379, 3361]
    assert [end - first for first, end in pairwise(levels.offsets)] == [4096, 64000, *[524288] * 6]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("aabb_scale", 3),
        ("aabb_scale", 256),
        ("grid_size", 48),
        ("offset", [0.5, 0.5]),
        ("scale", 0),
        ("width", None),
        ("encoding.interpolation", "Smoothstep"),
        ("encoding.n_levels", None),
        ("network.activation", "Sine"),
        ("rgb_network.output_activation", "Exponential"),
        ("dir_encoding.degree", 5),
    ],
)
def test_a_scene_that_cannot_be_is_refused_when_the_model_is_built(key: str, value: Any):
    section, _, inner = key.partition(".")
    changed = {**TINY[section], inner: value} if inner else value
    with pytest.raises(UsageError, match=inner or section):
        InstantNGP({**TINY, section: changed})
