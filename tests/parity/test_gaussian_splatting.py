"""Our renderer against its equations in float64, float32 on the CPU, and against the functions of gsplat that
run there; gsplat runs in a process of its own. The pixels alone need its CUDA kernels."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastkernels.baseline.L3.splat_render import Rasterization
from fastkernels.baseline.L4.gaussian_splatting import GaussianSplatting
from safetensors.torch import save_file
from torch import Tensor

from fastkernels import Model, kernels, registry
from fastkernels.errors import FileFormatError, RequestError, UsageError, WeightsError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.splats import look_at_middle
from fastkernels.loader.weights import find, load_model
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.splats import Splats
from fastkernels.nn.weights import destinations
from tests.parity import apart
from tests.parity.splat_equations import DEGREE, HEIGHT, WIDTH, Scene, image, projected, scene

TOLERANCE = 1e-5  # of colours, from the architecture's fact sheet
TINY = registry.architecture("gaussian_splatting").configs["tiny"].config
TILES = (3, 3)


@torch.inference_mode()
def ours(s: Scene, **options: Any) -> tuple[Tensor, Tensor]:
    return Rasterization()(*s, WIDTH, HEIGHT, sh_degree=DEGREE, **options)


@lru_cache
def exact(camera: int, wrong: str = "") -> tuple[Tensor, Tensor, Tensor]:
    return image(scene().cast(torch.float64), camera, wrong)


def error(found: Tensor, wanted: Tensor, apart: Tensor | None = None) -> float:
    assert found.shape == wanted.shape
    off = (found.double() - wanted.double()).abs()
    return float(off.max() if apart is None else off[~apart].max())


def test_images_agree_with_the_equations():
    rgb, alpha = ours(scene().cast(torch.float32))
    for camera in range(2):
        wanted, covered, near = exact(camera)
        assert wanted.std() > 0.1, "an empty image is no strong test"
        assert near.float().mean() < 0.01
        assert error(rgb[camera], wanted, near) <= TOLERANCE
        assert error(alpha[camera, ..., 0], covered, near) <= TOLERANCE


@pytest.mark.parametrize("options", [{}, {"tile_size": 8}, {"max_isects": 2000}], ids=str)
def test_tiles_and_a_bound_do_not_change_an_image(options: dict[str, Any]):
    rgb, alpha = ours(scene().cast(torch.float64), **options)
    for camera in range(2):
        wanted, covered, _ = exact(camera)
        assert error(rgb[camera], wanted) <= 1e-13
        assert error(alpha[camera, ..., 0], covered) <= 1e-13


@pytest.mark.parametrize(
    "wrong",
    [
        "quaternions as they are",
        "w last",
        "signs of harmonics",
        "channels first",
        "colours without direction",
        "colours at most 1",
        "direction to the camera",
        "clamped positions",
        "no clamp in the Jacobian",
        "no low-pass",
        "corners of pixels",
        "sorted by distance",
        "farthest first",
        "cap of 0.99",
        "skipped Gaussians dim",
        "the last one counts",
    ],
)
def test_a_wrong_renderer_would_be_noticed(wrong: str):
    rgb, _ = ours(scene().cast(torch.float32))
    off = max(error(rgb[camera], exact(camera, wrong)[0], exact(camera)[2]) for camera in range(2))
    assert off > 10 * TOLERANCE


@apart.needs("gsplat")
def test_what_gsplat_computes_on_a_cpu_agrees(tmp_path: Path):
    s = scene().cast(torch.float32)
    shown = (s.means @ s.viewmats[:, :3, :3].mT + s.viewmats[:, None, :3, 3])[..., 2] > 0.01
    arguments = (s.means, s.quats, s.scales, s.viewmats, s.Ks)
    radii, means2d, depths, conics = kernels.project_gaussians(*arguments, None, WIDTH, HEIGHT)
    # Equal depths, of which the first one given comes first.
    tied = (4 * depths).round() / 4
    dirs = s.means - torch.linalg.inv(s.viewmats)[:, None, :3, 3]
    coeffs = s.sh.expand(2, *s.sh.shape).contiguous()
    asked = {**s._asdict(), "width": WIDTH, "height": HEIGHT, "means2d": means2d, "radii": radii.int()}
    asked |= {
        "depths": tied,
        "tile_size": 16,
        "tiles": TILES,
        "degree": DEGREE,
        "dirs": dirs,
        "coeffs": coeffs,
    }
    wanted = apart.answer("gsplat_process", asked, tmp_path)
    their_radii, their_means2d, their_depths, their_conics = wanted["projection"]
    assert torch.equal(radii, their_radii.float())
    for found, theirs, most in (
        (means2d, their_means2d, 1e-5), (depths, their_depths, 1e-6), (conics, their_conics, 1e-5),
    ):  # fmt: skip
        theirs = theirs[shown]
        assert error(found[shown], theirs) <= most * float(theirs.abs().max())
    assert error(kernels.spherical_harmonics(dirs, s.sh, None, DEGREE), wanted["colours"]) <= 1e-5
    for impl in ("reference", "torch"):
        pairs = kernels.isect_tiles(means2d, radii, tied, 16, *TILES, impl=impl)
        assert torch.equal(pairs[0], wanted["pairs"][0])
        assert torch.equal(pairs[1], wanted["pairs"][1])
        offsets = kernels.isect_offset_encode(pairs[1], 2, *TILES, impl=impl)
        assert torch.equal(offsets, wanted["offsets"])


def test_the_scene_has_what_goes_wrong_elsewhere():
    s = scene().cast(torch.float64)
    u, _, p = projected(s, 0)
    seen = p[:, 2] > 0.01
    assert not bool(seen.all()), "one is behind a camera"
    assert float((u[seen, 0] - WIDTH).max()) > 10, "one is beside the image"
    assert float(exact(0)[1].max()) > 0.999, "pixels end early"


# ---------------------------------------------------------------- invariants


def test_the_order_of_input_and_the_company_of_cameras_change_nothing():
    s = scene().cast(torch.float64)
    rgb, alpha = ours(s)
    order = torch.randperm(len(s.means), generator=torch.Generator().manual_seed(1))
    mixed, _ = ours(Scene(*(part[order] for part in s[:5]), s.viewmats, s.Ks))
    assert error(mixed, rgb) <= 1e-13
    for camera in range(2):
        alone, _ = ours(s._replace(viewmats=s.viewmats[camera : camera + 1], Ks=s.Ks[camera : camera + 1]))
        assert torch.equal(alone[0], rgb[camera])
    # 0 .. 1, and no colour brighter than the brightest Gaussian's.
    assert 0 <= float(alpha.min()) <= float(alpha.max()) <= 1
    assert float(ours(s._replace(sh=0 * s.sh))[0].max()) <= 0.5


def test_what_is_transparent_has_no_effect_and_a_background_shines_through():
    s = scene().cast(torch.float32)
    rgb, alpha = ours(s)
    more = Scene(*(torch.cat((part, part)) for part in s[:5]), s.viewmats, s.Ks)
    more.opacities[len(s.means) :] = 0.0039  # below 1 / 255
    assert torch.equal(ours(more)[0], rgb)
    background = torch.tensor([[0.2, 0.4, 0.6], [0.9, 0.1, 0.3]])
    lit, _ = ours(s, backgrounds=background)
    assert error(lit, rgb + (1 - alpha) * background[:, None, None]) <= 1e-6


# ---------------------------------------------------------------- requests


def request(angle: float = 0.3, distance: float = 3.5) -> dict[str, Tensor]:
    focal = 0.7 * TINY["width"]
    intrinsics = torch.tensor([[focal, 0, TINY["width"] / 2], [0, focal, TINY["height"] / 2], [0, 0, 1]])
    return {"viewmat": look_at_middle(angle, distance), "intrinsics": intrinsics}


def test_cameras_that_cannot_be_are_refused_and_others_unharmed():
    model = Model("gaussian_splatting", config="tiny")
    good = request()
    wide, bent, skewed, flat = (request() for _ in range(4))
    wide["viewmat"] = 2 * wide["viewmat"]
    bent["viewmat"] = bent["viewmat"] * torch.tensor([[1.1], [1], [1], [1]])
    skewed["intrinsics"] = skewed["intrinsics"] + torch.tensor([[0, 1.0, 0], [0, 0, 0], [0, 0, 0]])
    flat["intrinsics"] = flat["intrinsics"] * torch.tensor([[-1.0], [1], [1]])
    bad = [
        wide, bent, skewed, flat,
        {**good, "viewmat": torch.full((4, 4), torch.nan)},
        {**good, "viewmat": torch.eye(3)},
        {**good, "intrinsics": torch.ones(3, 3, dtype=torch.int64)},
    ]  # fmt: skip
    (alone,) = model.run([good])
    *errors, found = model.run([*bad, good], errors="return")
    assert torch.equal(found["rgb"], alone["rgb"])
    assert all(isinstance(one, RequestError) for one in errors)
    said = [
        "viewmat ends with the row [0.0, 0.0, 0.0, 2.0]: it must be 0, .., 0, 1",
        "viewmat[:3, :3] is 0.21 from a rotation: it may be 0.001",
        "intrinsics have a skew of (1.0, 0.0): it must be 0",
        "intrinsics have focal lengths (-28.0, 28.0): they are above 0",
        "viewmat is not finite",
        "viewmat must be floats [4, 4], not float32 [3, 3]",
        "intrinsics must be floats [3, 3], not int64 [3, 3]",
    ]
    assert [str(one) for one in errors] == said


def test_an_image_with_too_many_pairs_is_refused_alone():
    model = Model({**TINY, "max_isects": 620})
    good, near = request(), request(distance=1.0)
    (alone,) = model.run([good])
    crowded, found = model.run([near, good], errors="return")
    assert isinstance(crowded, RequestError)
    assert "more than 620 pairs of a Gaussian and a tile" in str(crowded)
    assert torch.equal(found["rgb"], alone["rgb"])
    assert [stage.batch_sizes for stage in model.stages.values()] == [[1, 2], [1, 1]]


# ---------------------------------------------------------------- checkpoints


def written(folder: Path, tensors: dict[str, Tensor], **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**TINY, **changes}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def loaded(folder: Path) -> GaussianSplatting:
    overlay, cpu = Overlay.over_baseline(), torch.device("cpu")
    return load_model(find(str(folder)), overlay, cpu, torch.float32, seed=0)  # type: ignore[return-value]


def filled() -> GaussianSplatting:
    model = GaussianSplatting(TINY)
    random_weights(model, seed=1)
    return model


def test_checkpoints_of_gsplat_and_of_inria_give_the_same_scene(tmp_path: Path):
    model = filled()
    sh = model.sh.detach()
    parts = {"means": model.means, "scales": model.log_scales, "quats": model.quats}
    parts |= {"opacities": model.logit_opacities, "sh0": sh[:, :1], "shN": sh[:, 1:]}
    written(tmp_path / "gsplat", {name: part.detach().clone() for name, part in parts.items()})
    # Inria's columns as its trainer writes them: the rest of red's coefficients, then of green's and blue's.
    columns = [model.means, torch.zeros_like(model.means), sh[:, 0], sh[:, 1:].mT.flatten(1)]
    columns += [model.logit_opacities[:, None], model.log_scales, model.quats]
    names = [
        "x",
        "y",
        "z",
        "nx",
        "ny",
        "nz",
        "f_dc_0",
        "f_dc_1",
        "f_dc_2",
        *(f"f_rest_{i}" for i in range(45)),
    ]
    names += ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    header = [f"property float {name}" for name in names]
    header = [
        "ply",
        "format binary_little_endian 1.0",
        f"element vertex {len(sh)}",
        *header,
        "end_header",
        "",
    ]
    rows = torch.cat([column.detach() for column in columns], 1).numpy().astype("<f4")
    inria = tmp_path / "inria"
    inria.mkdir()
    (inria / "config.json").write_text(json.dumps(TINY))
    ply = inria / "point_cloud.ply"
    ply.write_bytes("\n".join(header).encode() + np.ascontiguousarray(rows).tobytes())
    for folder in (tmp_path / "gsplat", inria):
        for (name, wanted), found in zip(model.named_parameters(), loaded(folder).parameters(), strict=True):
            assert torch.equal(found, wanted), name
    ply.write_bytes(ply.read_bytes()[:-8])
    with pytest.raises(FileFormatError, match="300 vertices of 248 bytes"):
        loaded(inria)
    ply.write_bytes(ply.read_bytes().replace(b"float rot_3", b"float rot_9"))
    with pytest.raises(FileFormatError):
        loaded(inria)


def test_tensors_that_do_not_fit_are_named(tmp_path: Path):
    model = filled()
    tensors = {"means": model.means[:7], "quats": model.quats, "opacities": model.logit_opacities}
    tensors |= {"sh0": model.sh[:, :1], "shN": model.sh[:, 1:], "others": model.means}
    folder = written(tmp_path / "wrong", {name: part.detach().clone() for name, part in tensors.items()})
    with pytest.raises(WeightsError) as raised:
        loaded(folder)
    assert {" ".join(line.split()) for line in str(raised.value).splitlines()[1:]} == {
        "missing scales, expected [300, 3]",
        "unexpected others [300, 3]",
        "misshapen means [7, 3], expected [300, 3]",
    }


def test_the_real_checkpoints_columns_are_covered():
    with torch.device("meta"):
        places, unnamed = destinations(GaussianSplatting(find("gaussian_splatting", "train-100k").config))
    assert not unnamed
    assert {name: place.shape for name, place in places.items()} == {
        "means": [100000, 3],
        "scales": [100000, 3],
        "quats": [100000, 4],
        "opacities": [100000],
        "sh": [100000, 16, 3],
    }
    columns = [name for names in Splats(16).columns.values() for name in names]
    assert len(columns) == len(set(columns)) == 59


@pytest.mark.parametrize(("key", "value"), [("sh_degree", 4), ("max_isects", 0), ("width", None)])
def test_a_scene_that_cannot_be_is_refused_when_the_model_is_built(key: str, value: Any):
    with pytest.raises(UsageError, match=key):
        GaussianSplatting({**TINY, key: value})
