"""The renderer's kernels and graphs on a GPU, and gsplat's images where its kernels can be compiled."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

import pytest
import torch

from fastkernels import Model, kernels, registry
from fastkernels.kernels import registered
from fastkernels.loader.splats import _cloud, _pairs, _Sizes, look_at_middle
from tests.splat_cases import LISTS, answer, blend

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

REAL = _Sizes(2, 100_000, 1920, 1080, 16, 1 << 21)
WORST = 2 / 255  # of a channel, where roundings decide at a few pixels


@pytest.mark.parametrize("name", LISTS)
def test_pixels_against_a_loop(name):
    args, wanted = blend(name), answer(blend(name))
    for impl in ("reference", "triton"):
        for found, exact in zip(
            kernels.rasterize_to_pixels(*args.on("cuda", torch.float32), impl=impl), wanted
        ):
            torch.testing.assert_close(found.cpu().double(), exact, rtol=0, atol=2e-6)


def test_a_real_image_against_float64_and_the_same_bits_every_time():
    cloud, pairs = _cloud(REAL, 0, "cuda"), _pairs(REAL, 0, "cuda")
    assert int((pairs["flatten_ids"] >= 0).sum()) > 1_000_000
    floats = (pairs["means2d"], pairs["conics"], torch.rand(2, 100_000, 3, device="cuda"))
    floats = (*floats, cloud["opacities"].repeat(2, 1))
    lists = (pairs["isect_offsets"], pairs["flatten_ids"], None, 1920, 1080, 16)
    exact, _ = kernels.rasterize_to_pixels(*(x.double() for x in floats), *lists, impl="reference")
    found = [kernels.rasterize_to_pixels(*floats, *lists, impl="triton")[0] for _ in range(3)]
    off = (found[0] - exact).abs()
    assert float(off.square().mean()) < 1e-10
    assert float((off.amax(-1) > WORST).double().mean()) < 1e-5
    assert all(torch.equal(found[0], one) for one in found)


def test_pairs_and_projections_agree_with_their_references():
    cloud, pairs = _cloud(REAL, 1, "cuda"), _pairs(REAL, 1, "cuda")
    given = (pairs["means2d"], pairs["radii"], pairs["depths"], 16, 120, 68, REAL.places)
    for found, wanted in zip(kernels.isect_tiles(*given), kernels.isect_tiles(*given, impl="reference")):
        assert torch.equal(found, wanted)
    given = [cloud[name] for name in ("means", "quats", "scales", "viewmats", "Ks", "opacities")]
    exact = kernels.project_gaussians(*(x.double() for x in given), 1920, 1080, impl="reference")
    for impl in registered["project_gaussians"].names:
        radii, *others = kernels.project_gaussians(*given, 1920, 1080, impl=impl)
        assert float((radii != exact[0]).double().mean()) < 1e-4
        for found, wanted in zip(others, exact[1:]):
            assert float((found - wanted).norm() / wanted.norm()) < 1e-5


def requests(count: int, size: str) -> list[dict[str, torch.Tensor]]:
    entry = registry.architecture("gaussian_splatting")
    config = entry.configs[entry.default_config[size]].config
    focal, width, height = 0.7 * config["width"], config["width"], config["height"]
    intrinsics = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    return [{"viewmat": look_at_middle(0.7 * i, 3.5), "intrinsics": intrinsics} for i in range(count)]


def test_replayed_launches_equal_eager_ones_and_the_cpu():
    here = Model("gaussian_splatting", config="tiny", device="cpu", seed=1)
    graphed = Model("gaussian_splatting", config="tiny", device="cuda", seed=1)
    eager = Model("gaussian_splatting", config="tiny", device="cuda", seed=1, enforce_eager=True)
    for start in range(4):
        asked = requests(start + 2, "tiny")[start:]
        expected = here.run(asked)
        for model in (graphed, eager):
            for found, wanted in zip(model.run(asked), expected, strict=True):
                for name in ("rgb", "alpha"):
                    torch.testing.assert_close(found[name].cpu(), wanted[name], rtol=0, atol=WORST)
                    assert float((found[name].cpu() - wanted[name]).square().mean()) < 1e-9
        for one, other in zip(graphed.run(asked), eager.run(asked), strict=True):
            assert torch.equal(one["rgb"], other["rgb"])
    assert graphed.stats()["forward"]["graph_replays"] >= 6


@pytest.mark.skipif(
    find_spec("gsplat") is None or not shutil.which("nvcc"), reason="gsplat's kernels need nvcc"
)
def test_images_are_those_of_gsplat():
    import gsplat

    asked = requests(2, "full")
    model = Model("gaussian_splatting", size="full", device="cuda")
    views, intrinsics = (torch.stack([one[name] for one in asked]).float().cuda() for name in asked[0])
    made = model.model
    scene = (made.means, made.quats, made.log_scales.exp(), made.logit_opacities.sigmoid(), made.sh)
    wanted, alphas, _ = gsplat.rasterization(*scene, views, intrinsics, 1920, 1080, sh_degree=3, packed=False)
    for image, found in enumerate(model.run(asked)):
        for name, theirs in (("rgb", wanted[image]), ("alpha", alphas[image])):
            off = (found[name] - theirs).abs()
            assert float(10 * torch.log10(theirs.max().square() / off.square().mean())) > 50
            assert float((off.amax(-1) > WORST).double().mean()) < 1e-4
