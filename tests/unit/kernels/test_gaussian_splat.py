"""project_gaussians, isect_tiles, isect_offset_encode, rasterize_to_pixels and spherical_harmonics on this
machine: pixels against a loop over them, pairs against a loop over Gaussians, roundings that decide."""

from __future__ import annotations

import math
from importlib import import_module
from itertools import product

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels.tile_intersection import NONE
from tests.splat_cases import LISTS, answer, blend
from tests.unit.kernels.implementations import REFERENCE, TORCH, TRITON

FEW_CAMERAS = 2


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
@pytest.mark.parametrize("name", LISTS)
def test_pixels(name, impl):
    args = blend(name)
    for found, wanted in zip(kernels.rasterize_to_pixels(*args, impl=impl), answer(args), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-6)


def test_most_pixels_of_a_case_end_early_and_some_gaussians_are_skipped():
    _, alphas = answer(blend("odd-sides"))
    assert float(alphas.max()) > 0.999
    assert float(alphas.min()) < 0.9


def test_float64_is_exact():
    args = blend("odd-sides").on("cpu", torch.float64)
    for found, wanted in zip(kernels.rasterize_to_pixels(*args), answer(args), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)


def gaussians(number: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """On a grid of 1/4 of a pixel, also beside the image; depths of few values, so many are equal."""
    generator = torch.Generator().manual_seed(3)
    shape = (FEW_CAMERAS, number)
    means2d = torch.randint(-80, 240, (*shape, 2), generator=generator) / 4
    radii = torch.randint(0, 20, (*shape, 2), generator=generator).float()
    return means2d, radii, torch.randint(1, 6, shape, generator=generator) / 4


@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
@pytest.mark.parametrize("free", [None, 0, 57])
def test_pairs(impl, free):
    means2d, radii, depths = gaussians()
    wide, high, size = 5, 3, 8
    rows = []
    for image, n in product(range(FEW_CAMERAS), range(depths.shape[1])):
        (u, v), (rx, ry), z = means2d[image, n].tolist(), radii[image, n].tolist(), float(depths[image, n])
        if rx and ry:
            across = range(max(0, math.floor((u - rx) / size)), min(wide, math.ceil((u + rx) / size)))
            down = range(max(0, math.floor((v - ry) / size)), min(high, math.ceil((v + ry) / size)))
            rows += [(image, y * wide + x, z, image * depths.shape[1] + n) for y in down for x in across]
    rows.sort(key=lambda row: row[:3])  # stable
    places = None if free is None else len(rows) + free
    counts, ids, flat = kernels.isect_tiles(means2d, radii, depths, size, wide, high, places, impl=impl)
    assert int(counts.sum()) == len(rows) > 100
    assert flat.tolist() == [row[3] for row in rows] + [-1] * (free or 0)
    assert ids[len(rows) :].tolist() == [NONE] * (free or 0)
    bits = [int(torch.tensor(row[2]).view(torch.int32)) for row in rows]
    assert ids[: len(rows)].tolist() == [(r[0] << 4 | r[1]) << 32 | b for r, b in zip(rows, bits)]
    offsets = kernels.isect_offset_encode(ids, FEW_CAMERAS, wide, high, impl=impl)
    before = [
        sum((row[0], row[1]) < (image, tile) for row in rows)
        for image, tile in product(range(FEW_CAMERAS), range(wide * high))
    ]
    assert offsets.flatten().tolist() == before


@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_more_pairs_than_places_are_counted_and_no_gaussian_has_none(impl):
    means2d, radii, depths = gaussians()
    counts, ids, flat = kernels.isect_tiles(means2d, radii, depths, 8, 5, 3, 30, impl=impl)
    assert (ids.shape, flat.shape) == ((30,), (30,))
    assert int(counts.sum()) > 30
    assert bool((ids.diff() >= 0).all())
    nobody = (means2d[:, :0], radii[:, :0], depths[:, :0], 8, 5, 3)
    for places in (None, 4):
        counts, ids, flat = kernels.isect_tiles(*nobody, places, impl=impl)
        assert (counts.numel(), ids.tolist(), flat.tolist()) == (
            0,
            [NONE] * (places or 0),
            [-1] * (places or 0),
        )
        assert not bool(kernels.isect_offset_encode(ids, 2, 5, 3, impl=impl).any())


def test_roundings_that_decide_can_be_turned_round():
    """One radius is a whole number, one alpha is 1/255 and one pixel's light is 1e-4, but for a rounding."""
    projection, rasterizer = (
        import_module(f"fastkernels.kernels.{name}") for name in ("project_gaussians", "rasterize_to_pixels")
    )
    radius = torch.tensor([3.0000001, 3.5], dtype=torch.float64)
    assert projection._whole(radius).tolist() == [4, 4]
    with projection.other_way(1e-6):
        assert projection._whole(radius).tolist() == [3, 4]
    alpha = torch.tensor([1 / 255 + 1e-12, 0.5], dtype=torch.float64)
    found = alpha >= rasterizer.LEAST_ALPHA
    with rasterizer.other_way(1e-6):
        assert rasterizer._decided(found, alpha, rasterizer.LEAST_ALPHA).tolist() == [False, True]
    assert rasterizer._decided(found, alpha, rasterizer.LEAST_ALPHA).tolist() == [True, True]


def test_what_does_not_fit_is_named():
    args = blend("whole-tiles")
    with pytest.raises(ValueError, match=r"offsets \[1, 2, 2\], an image of 16 x 17 has tiles \[1, 2, 3\]"):
        kernels.rasterize_to_pixels(*args._replace(image_width=17))
    dirs, coeffs = torch.ones(4, 3), torch.ones(4, 9, 3)
    with pytest.raises(ValueError, match="degree 3 has 16 coefficients, not 9"):
        kernels.spherical_harmonics(dirs, coeffs, None, 3)
    with pytest.raises(ValueError, match="degree 4, served are 0 to 3"):
        kernels.spherical_harmonics(dirs, coeffs, None, 4)
    with pytest.raises(KernelError, match="triton"):
        kernels.rasterize_to_pixels(*args.on("cpu", torch.float64), impl="triton")
    on_meta = [part.to("meta") for part in gaussians()]
    with pytest.raises(ValueError, match="without max_isects"):
        kernels.isect_tiles(*on_meta, 8, 5, 3)


def test_operators_agree_with_their_schema_and_fake():
    means2d, radii, depths = gaussians()
    cloud = (torch.randn(5, 3), torch.randn(5, 4), torch.rand(5, 3), torch.eye(4)[None], torch.eye(3)[None])
    calls = {
        "rasterize_to_pixels": tuple(blend("whole-tiles")),
        "isect_tiles": (means2d, radii, depths, 8, 5, 3, 900),
        "isect_offset_encode": (torch.arange(9) << 32, 2, 5, 3),
        "project_gaussians": (*cloud, torch.rand(5), 40, 33, 0.3, 0.01, 1e10, 0.0),
        "spherical_harmonics": (torch.randn(2, 5, 3), torch.randn(5, 16, 3), None, 3),
    }
    for name, args in calls.items():
        op = getattr(torch.ops.fastkernels, name).default
        torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))
