"""A trained scene as a hash grid and two small networks, and its images from any camera.

    rays of the cameras [R^T | scale (-R^T t) + offset], axes (y, z, x);  rgba = trace(rays)

C cameras, H x W pixels. A view [R | t] is from the dataset's space to a camera that looks along z, x to the
right and y down: the inverse of a `transform_matrix` whose columns 1 and 2 are negated. The scene's box is
0.5 +- aabb_scale / 2 on each axis of the other space. `config` has encoding, dir_encoding, network and
rgb_network as tiny-cuda-nn's configurations do, and of the dataset aabb_scale, scale, offset, width and
height. Colours are linear, over background_color. All is float32.
Mirrors pyngp.Testbed: `forward` is render with one sample of a pixel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.kernels.init_rays import cone_angle_of
from fastkernels.nn.cameras import Cameras
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.radiance import snapshot_map

from ..L1.ray_march import InitRays
from ..L3.nerf_renderer import NerfTracer

MOST_CAMERAS = 2  # of a launch
MOST_SCALE = 128  # of eight cascades
FINEST = 2048  # nodes of the finest grid on a side of the unit cube


class InstantNGP(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        self.width, self.height = reader.integer("width"), reader.integer("height")
        self.aabb_scale = power_of_two(reader, "aabb_scale", 1, MOST_SCALE)
        self.scale, self.offset = reader.number("scale"), numbers(reader, "offset", 3)
        self.init_rays = InitRays()
        self.tracer = NerfTracer(
            self.aabb_scale,
            power_of_two(reader, "grid_size", 8, 1024),
            numbers(reader, "background_color", 4),
            pos_encoding(reader, self.aabb_scale),
            dict(reader.section("dir_encoding").config),
            dict(reader.section("network").config),
            dict(reader.section("rgb_network").config),
        )
        self.weight_map = snapshot_map(self)

    def forward(self, viewmats: Tensor, Ks: Tensor) -> Tensor:
        """viewmats [C, 4, 4] from the dataset's space to the camera, Ks [C, 3, 3] -> rgba [C, H, W, 4]"""
        turn_C33, shift_C3 = viewmats[:, :3, :3].mT, viewmats[:, :3, 3]
        # A sum of three numbers: no product of matrices, which a GPU might round to fewer bits.
        place_C3 = -(turn_C33 * shift_C3[:, None]).sum(-1) * self.scale + viewmats.new_tensor(self.offset)
        cameras_C34 = torch.cat((turn_C33, place_C3[..., None]), -1).roll(-1, 1)
        rays = self.init_rays(
            cameras_C34, Ks, self.width, self.height, self.aabb_scale, cone_angle_of(self.aabb_scale)
        )
        return self.tracer(*rays).view(len(Ks), self.height, self.width, 4)

    def advance(
        self, origins: Tensor, directions: Tensor, starts: Tensor, steps: Tensor, rgba: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A round of the rays that are left."""
        return self.tracer.advance(origins, directions, starts, steps, rgba)

    def examples(self, run: str, batch: Batch) -> Examples:
        """A camera for each row of the batch; `advance`: a ray."""
        rows = len(batch.seq_lens)
        if run == "advance":
            steps = torch.empty(rows, dtype=torch.int32)
            rays = (torch.empty(rows, 3), torch.empty(rows, 3), torch.empty(rows), steps)
            yield run, (*rays, torch.empty(rows, 4))
        else:
            yield run, (torch.empty(rows, 4, 4), torch.empty(rows, 3, 3))

    def stages(self) -> dict[str, Stage]:
        return {"forward": Stage(Cameras(self.place), MOST_CAMERAS)}

    def program(self, viewmat: Tensor, intrinsics: Tensor) -> Program:
        """viewmat [4, 4] from the dataset's space to a camera that looks along z, x to the right and y down;
        intrinsics [3, 3] for the model's images, without skew -> rgba [H, W, 4], linear"""
        return {"rgba": (yield Call("forward", viewmat, intrinsics))}


def pos_encoding(config: ConfigReader, aabb_scale: int) -> dict[str, Any]:
    """With the ratio of two levels, which follows from the finest one where it is not said."""
    encoding = config.section("encoding")
    levels, base = encoding.integer("n_levels"), encoding.integer("base_resolution")
    finest = (FINEST * aabb_scale / base) ** (1 / max(levels - 1, 1))
    return {**encoding.config, "per_level_scale": encoding.number("per_level_scale", default=finest)}


def power_of_two(config: ConfigReader, key: str, least: int, most: int) -> int:
    value = config.integer(key)
    if not least <= value <= most or not math.log2(value).is_integer():
        raise config.error(key, f"must be a power of two from {least} to {most}, not {value}")
    return value


def numbers(config: ConfigReader, key: str, count: int) -> list[float]:
    values = config.config.get(key)
    if not isinstance(values, list) or len(values) != count or not all(map(is_number, values)):
        raise config.error(key, f"must be {count} numbers, not {values!r}")
    return [float(value) for value in values]


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
