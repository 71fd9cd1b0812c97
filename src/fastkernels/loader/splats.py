"""Clouds of Gaussians and their cameras, as a renderer has them: `draw: splats.FIELD`.

    means, quats, scales, opacities         of Gaussians in the cube from -1 to 1
    viewmats, Ks                            of cameras on an orbit around it
    means2d, radii, depths, conics,         of each Gaussian on each image, and its pairs with tiles; means2d
    isect_ids, isect_offsets, flatten_ids   lie on a grid of 1/16 of a pixel, so that every way to divide
                                            them by a tile's size is exact

All fields of one seed fit each other. Calls of a chain share one cloud.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from fastkernels import kernels
from fastkernels.nn.splats import splat_range
from fastkernels.records import Case, TensorSpec

FOCAL = 0.7  # of the longer side of an image
ORBIT, HEIGHT = 3.5, 0.35  # its radius, and what cameras are above the middle as a share of it
TILE = 16
_GRID = 16  # places of a pixel
_PAIRS = 8  # of a Gaussian, where the pairs alone say how many Gaussians there are


class _Sizes(NamedTuple):
    cameras: int
    gaussians: int
    width: int
    height: int
    tile: int
    places: int  # for pairs


def drawn(spec: TensorSpec, case: Case, seed: int, device: torch.device | str) -> Tensor:
    """In the shape and dtype of the spec. ValueError where the case does not say what it takes."""
    field, sizes = spec.draw.removeprefix("splats."), _sizes(case)
    found = _cloud(sizes, seed, str(device))
    if field not in found:
        found = _pairs(sizes, seed, str(device))
    value = found[field].to(getattr(torch, spec.dtype), copy=True)  # whoever gets it may write to it
    if tuple(value.shape) != spec.shape:
        shapes = f"{list(spec.shape)}, drawn {list(value.shape)}"
        raise ValueError(f"{case.task} {case.id}: {spec.draw} is declared {shapes}")
    return value


def look_at_middle(angle: float, distance: float) -> Tensor:
    """float64 [4, 4]: the view of a camera on the orbit, x to the right, y down and z forward."""
    eye = distance * torch.tensor(
        (math.cos(angle), math.sin(angle), HEIGHT), dtype=torch.float64, device="cpu"
    )
    forward = -eye / eye.norm()
    right = torch.linalg.cross(forward, forward.new_tensor((0, 0, 1)))
    right = right / right.norm()
    turn = torch.stack((right, torch.linalg.cross(forward, right), forward))
    view = torch.eye(4, dtype=torch.float64, device="cpu")
    view[:3, :3], view[:3, 3] = turn, -turn @ eye
    return view


def _sizes(case: Case) -> _Sizes:
    inputs: dict[str, Any] = {**case.init.get("config", {}), **case.inputs}
    shapes = {name: value.shape for name, value in case.inputs.items() if isinstance(value, TensorSpec)}
    cameras = (
        shapes["viewmats"][0] if "viewmats" in shapes else inputs.get("n_images") or shapes["means2d"][0]
    )
    places = (
        (shapes.get("flatten_ids") or shapes.get("isect_ids") or (0,))[0] or inputs.get("max_isects") or 0
    )
    gaussians = places // _PAIRS // cameras
    for name, axis in (("means", 0), ("means2d", 1)):
        if name in shapes:
            gaussians = shapes[name][axis]
    tile = inputs.get("tile_size", TILE)
    width, height = (
        inputs.get(side) or inputs.get(f"image_{side}") or inputs[f"tile_{side}"] * tile
        for side in ("width", "height")
    )
    return _Sizes(cameras, gaussians, width, height, tile, places)


@lru_cache(maxsize=2)
def _cloud(sizes: _Sizes, seed: int, device: str) -> dict[str, Tensor]:
    generator = Generator(device).manual_seed(seed)

    def uniform(*shape: int, low: float, high: float) -> Tensor:
        return torch.empty(shape, device=device).uniform_(low, high, generator=generator)

    cameras, number = sizes.cameras, sizes.gaussians
    first, *distances = uniform(1 + cameras, low=0.9, high=1.1).tolist()
    angles = [2 * math.pi * (first + place / cameras) for place in range(cameras)]
    views = [
        look_at_middle(angle, ORBIT * distance) for angle, distance in zip(angles, distances, strict=True)
    ]
    focal = FOCAL * max(sizes.width, sizes.height)
    intrinsic = [[focal, 0.0, sizes.width / 2], [0.0, focal, sizes.height / 2], [0.0, 0.0, 1.0]]
    found = {
        "viewmats": torch.stack(views).float().to(device),
        "Ks": torch.tensor([intrinsic] * cameras, device=device),
        "means": uniform(number, 3, low=-1, high=1),
        "quats": uniform(number, 4, low=-1, high=1),
    }
    for name, parameter in (("scales", "log_scales"), ("opacities", "logit_opacities")):
        shape = (number, 3) if name == "scales" else (number,)
        bounds = splat_range(parameter, torch.empty(number, device="meta"))
        assert bounds is not None
        raw = uniform(*shape, low=bounds[0], high=bounds[1])
        found[name] = raw.exp() if name == "scales" else raw.sigmoid()
    return found


@lru_cache(maxsize=2)
def _pairs(sizes: _Sizes, seed: int, device: str) -> dict[str, Tensor]:
    cloud = _cloud(sizes, seed, device)
    gaussians = (cloud["means"], cloud["quats"], cloud["scales"])
    cameras = (cloud["viewmats"], cloud["Ks"])
    radii, means2d, depths, conics = kernels.project_gaussians(
        *gaussians, *cameras, cloud["opacities"], sizes.width, sizes.height, impl="reference"
    )
    means2d = (means2d * _GRID).round() / _GRID
    tiles = (-(-sizes.width // sizes.tile), -(-sizes.height // sizes.tile))
    _, isect_ids, flatten_ids = kernels.isect_tiles(
        means2d, radii, depths, sizes.tile, *tiles, sizes.places, impl="torch"
    )
    return {
        "radii": radii,
        "means2d": means2d,
        "depths": depths,
        "conics": conics,
        "isect_ids": isect_ids,
        "isect_offsets": kernels.isect_offset_encode(isect_ids, sizes.cameras, *tiles, impl="torch"),
        "flatten_ids": flatten_ids,
    }
