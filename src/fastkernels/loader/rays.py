"""Cameras in a scene of occupied cubes and rays that leave them: `draw: rays.FIELD`.

    viewmats or cameras, and Ks             on an orbit within the box, looking at its middle
    origins, directions, starts, steps      of rays from anywhere in a cube around the middle, some under way
    density_grid                            the cells (kernels/occupancy.py)

All fields of one seed fit each other. Where the grid is drawn too, no rounding decides in which cells a ray's
places lie: a ray of which one would is another one over again. Calls of a chain share one scene.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Generator, Tensor

from fastkernels import kernels
from fastkernels.kernels.init_rays import cone_angle_of, place_of
from fastkernels.kernels.march_rays import other_way
from fastkernels.loader.splats import FOCAL, look_at_middle
from fastkernels.nn.occupancy import random_grid
from fastkernels.records import Case, TensorSpec

ORBIT = 0.35  # of the box's side
ROUNDINGS = 2**-20
MOST_UNDER_WAY = 100  # steps
_ALIKE = 16  # samples of a ray that are looked at for roundings, at least
_SAME = 1e-9


def drawn(spec: TensorSpec, case: Case, seed: int, device: torch.device | str) -> Tensor:
    """In the shape and dtype of the spec."""
    inputs: dict[str, Any] = {**case.init.get("config", {}), **case.init, **case.inputs}
    field, aabb_scale = spec.draw.removeprefix("rays."), inputs["aabb_scale"]
    if field in ("viewmats", "cameras", "Ks"):
        value = _cameras(spec.shape[0], inputs, seed)[field].to(device)
    elif "density_grid" in inputs:
        rays, grid = (inputs[name].shape for name in ("origins", "density_grid"))
        cone, most = inputs["cone_angle"], max(inputs["n_steps"], _ALIKE)
        value = _sure_rays(rays[0], grid, aabb_scale, cone, most, seed, str(device))[field]
    else:
        value = _any_rays(spec.shape[0], cone_angle_of(aabb_scale), seed, str(device))[field]
    assert tuple(value.shape) == spec.shape, f"{case.task} {case.id}: {spec.draw} {list(value.shape)}"
    return value.to(getattr(torch, spec.dtype), copy=True)  # whoever gets it may write to it


def _cameras(count: int, inputs: dict[str, Any], seed: int) -> dict[str, Tensor]:
    """A space of `scale` units to one of the dataset's; without, the box's own."""
    first, *shares = torch.rand(1 + count, generator=Generator().manual_seed(seed), device="cpu").tolist()
    focal = FOCAL * max(inputs["width"], inputs["height"])
    farthest = ORBIT * inputs["aabb_scale"] / inputs.get("scale", 1)
    views, cameras = [], []
    for place, share in enumerate(shares):
        views.append(look_at_middle(2 * math.pi * (first + place / count), farthest * (0.5 + share / 2)))
        turn = views[-1][:3, :3].T
        cameras.append(torch.cat((turn, 0.5 - turn @ views[-1][:3, 3:]), 1))
    middle = inputs["width"] / 2, inputs["height"] / 2
    intrinsic = torch.tensor([[focal, 0, middle[0]], [0, focal, middle[1]], [0, 0, 1]], device="cpu")
    return {
        "viewmats": torch.stack(views),
        "cameras": torch.stack(cameras),
        "Ks": intrinsic.expand(count, 3, 3),
    }


def _any_rays(count: int, cone_angle: float, seed: int, device: str) -> dict[str, Tensor]:
    generator = Generator(device).manual_seed(seed)

    def uniform(*shape: int, low: float, high: float) -> Tensor:
        return torch.empty(shape, device=device).uniform_(low, high, generator=generator)

    directions = torch.empty(count, 3, device=device).normal_(generator=generator)
    return {
        "origins": uniform(count, 3, low=0, high=1),
        "directions": torch.nn.functional.normalize(directions, dim=-1),
        "starts": uniform(count, low=0, high=1) + place_of(torch.zeros(1, device=device), cone_angle),
        "steps": uniform(count, low=-1, high=MOST_UNDER_WAY).floor().int(),
    }


@lru_cache(maxsize=2)
def _sure_rays(
    count: int, grid: tuple[int, ...], aabb_scale: int, cone_angle: float, most: int, seed: int, device: str
) -> dict[str, Tensor]:
    found = _any_rays(count, cone_angle, seed, device)
    cells = random_grid(grid, seed).to(device)
    rays = [found[name].double() for name in ("origins", "directions", "starts")]
    scene = (found["steps"], cells, aabb_scale, cone_angle, most)

    def marched() -> tuple[Tensor, ...]:
        origins, directions, starts = rays
        return kernels.march_rays(origins, directions, starts, *scene, impl="reference")

    samples, _, ends = marched()
    with other_way(ROUNDINGS):
        others, _, other_ends = marched()
    is_sure = ((samples - others).abs().amax((1, 2)) < _SAME) & (ends == other_ends)
    sure = is_sure.nonzero().squeeze(1)
    assert len(sure) > count // 2, f"roundings decide {count - len(sure)} of {count} rays"
    ray = torch.arange(count, device=device)
    ray = torch.where(is_sure, ray, sure[ray % len(sure)])
    return {name: value[ray] for name, value in found.items()} | {"density_grid": cells}
