"""The radiance field's kernels, a real image and the whole model on a GPU."""

from __future__ import annotations

import pytest
import torch

from fastkernels import Model, kernels, registry
from fastkernels.kernels import registered
from fastkernels.kernels.hash_encoding import levels_of
from fastkernels.loader.rays import _sure_rays
from fastkernels.loader.splats import look_at_middle
from tests import radiance_cases as cases

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

WORST = 0.02  # of a channel, where roundings decide at a few pixels
CASES = [
    *(("hash_encoding", name, 2e-5) for name in cases.GRIDS),
    *(("fused_mlp", name, 2e-6) for name in cases.NETWORKS),
    *(("march_rays", name, 1e-6) for name in cases.MARCHES),
    *(("volume_composite", name, 2e-6) for name in cases.SUMS),
]


def of_case(kernel: str, name: str) -> tuple[list, tuple[torch.Tensor, ...]]:
    """(arguments on the host, results)"""
    if kernel == "hash_encoding":
        x, table, levels = cases.grid(name)
        return [x, table, *map(list, levels)], (cases.encoded(x, table, levels),)
    if kernel == "fused_mlp":
        x, weights = cases.network(name)
        return [x, weights], (cases.through(x, weights),)
    if kernel == "march_rays":
        args = cases.march(name)
        return list(args), cases.marched(*args)
    args = cases.samples(name)
    return list(args), (cases.composed(*args),)


def on_gpu(value):
    if isinstance(value, list):
        return [on_gpu(part) for part in value]
    return value.cuda() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize(("kernel", "name", "most"), CASES, ids=str)
def test_every_implementation_against_loops(kernel, name, most):
    args, wanted = of_case(kernel, name)
    args = on_gpu(args)
    served = [impl for impl in registered[kernel].names if registered[kernel].why_not(impl, args) is None]
    assert {"reference", "triton"} <= set(served)
    for impl in served:
        found = getattr(kernels, kernel)(*args, impl=impl)
        for result, exact in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
            torch.testing.assert_close(result.cpu().double(), exact.double(), rtol=most, atol=most)


def test_real_grids_and_rays_agree_with_float64():
    levels = levels_of(8, 19, 16, 2.4380273)
    x, table = torch.rand(1 << 18, 3, device="cuda"), torch.randn(levels.offsets[-1], 4, device="cuda")
    exact = kernels.hash_encoding(x.double(), table.double(), *levels, impl="reference")
    off = {i: kernels.hash_encoding(x, table, *levels, impl=i) - exact for i in ("reference", "triton")}
    assert float(off["triton"].norm()) < 2 * float(off["reference"].norm()) < 1e-2 * float(exact.norm())
    made = _sure_rays(1 << 16, (3, 1 << 18), 4, 1 / 256, 16, 0, "cuda")
    rays, scene = [made[name] for name in ("origins", "directions", "starts", "steps")], made["density_grid"]
    wide = [part.double() if part.is_floating_point() else part for part in rays]
    exact = kernels.march_rays(*wide, scene, 4, 1 / 256, 8, impl="reference")
    found = kernels.march_rays(*rays, scene, 4, 1 / 256, 8, impl="triton")
    assert torch.equal(found[2], exact[2])
    torch.testing.assert_close(found[0].double(), exact[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(found[1].double(), exact[1], rtol=1e-3, atol=1e-6)


def requests(count: int, size: str) -> list[dict[str, torch.Tensor]]:
    entry = registry.architecture("instant_ngp")
    config = entry.configs[entry.default_config[size]].config
    width, height = config["width"], config["height"]
    focal = 0.7 * max(width, height)
    intrinsics = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    return [{"viewmat": look_at_middle(0.7 * i, 3.5), "intrinsics": intrinsics} for i in range(count)]


def test_images_of_both_devices_agree_whatever_their_company():
    asked = requests(5, "tiny")
    wanted = Model("instant_ngp", config="tiny", device="cpu", seed=1).run(asked)
    there = Model("instant_ngp", config="tiny", device="cuda", seed=1)
    for found, exact in zip([*there.run(asked[:2]), *there.run(asked[2:])], wanted, strict=True):
        off = (found["rgba"].cpu() - exact["rgba"]).abs()
        assert float(off.median()) < 1e-5
        assert float((off.amax(-1) > WORST).double().mean()) < 0.02


def test_a_real_image_agrees_with_the_references_and_says_why_it_is_eager():
    (asked,) = requests(1, "full")
    model = Model("instant_ngp", size="full", device="cuda")
    images = [model.run([asked])[0]["rgba"].clone() for _ in range(3)]
    with kernels.use("reference"):
        wanted = model.model(asked["viewmat"][None].float().cuda(), asked["intrinsics"][None].cuda())[0]
    for image in images:
        mean_square = (image - wanted).square().mean()
        assert float(10 * torch.log10(wanted.max().square() / mean_square)) > 45
    assert model.stats()["forward"]["graph_replays"] == 0
    assert len(model.stats()["forward"]["eager_calls"]) > 0
