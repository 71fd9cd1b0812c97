"""Rays through a radiance field to colours: a few samples of every ray that goes on, until none does.

    x, delta, step = march(ray, step);  rgba = composite(rgba, network(x, d), delta)    while step >= 0, A < 1
    rgb = linear(C) + b b_A (1 - A),  alpha = A + b_A (1 - A)

R rays, b the background_color, b_A its opacity. A round takes as many samples of each ray as make 2^21 in
all, at least one and at most eight; how many rays go on is read on the host. linear undoes sRGB on what a ray
has seen in all: c / 12.92 up to 0.04045, above ((c + 0.055) / 1.055)^2.4. All is float32 (or float64).
Mirrors ngp.NerfTracer: `forward` is trace with the rays given, then ngp.shade_kernel_nerf.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.kernels.init_rays import cone_angle_of
from fastkernels.kernels.occupancy import cascades_of

from ..L1.ray_march import RayMarch
from ..L2.nerf_field import NerfNetwork
from ..L2.volume_composite import VolumeComposite

SAMPLES = 1 << 21  # of a round
MOST_STEPS = 8  # of a ray in a round


class NerfTracer(nn.Module):
    def __init__(
        self,
        aabb_scale: int,
        grid_size: int,
        background_color: list[float],
        pos_encoding: dict[str, Any],
        dir_encoding: dict[str, Any],
        density_network: dict[str, Any],
        rgb_network: dict[str, Any],
    ) -> None:
        super().__init__()
        self.aabb_scale, self.cone_angle = aabb_scale, cone_angle_of(aabb_scale)
        self.background_color = background_color
        cells = torch.empty(cascades_of(aabb_scale), grid_size**3 // 8, dtype=torch.uint8)
        self.density_grid = nn.Parameter(cells, requires_grad=False)
        self.network = NerfNetwork(pos_encoding, dir_encoding, density_network, rgb_network)
        self.ray_march, self.volume_composite = RayMarch(), VolumeComposite()

    def forward(self, origins: Tensor, directions: Tensor, starts: Tensor, steps: Tensor) -> Tensor:
        """Rays as L1/ray_march:rays gives them: origins [R, 3], directions [R, 3], starts [R], steps int32
        [R] -> rgba [R, 4], linear, colours weighted by alpha"""
        rgba_R4 = origins.new_zeros(len(origins), 4)
        # What goes on depends on data: of meta tensors there is one round, of all rays.
        ray_L = torch.arange(len(steps)) if steps.is_meta else (steps >= 0).nonzero().squeeze(1)
        while len(ray_L):
            step_L, seen_L4 = self.advance(*(x[ray_L] for x in (origins, directions, starts, steps, rgba_R4)))
            steps, rgba_R4 = steps.index_copy(0, ray_L, step_L), rgba_R4.index_copy(0, ray_L, seen_L4)
            if steps.is_meta:
                break
            ray_L = ray_L[(step_L >= 0) & (seen_L4[:, 3] < 1)]
        *background, opacity = self.background_color
        rest_R1 = opacity * (1 - rgba_R4[:, 3:])
        rgb_R3 = linear(rgba_R4[:, :3]) + rest_R1 * rgba_R4.new_tensor(background)
        return torch.cat((rgb_R3, rgba_R4[:, 3:] + rest_R1), -1)

    def advance(
        self, origins: Tensor, directions: Tensor, starts: Tensor, steps: Tensor, rgba: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A round of rays that go on, rgba [R, 4] so far -> steps int32 [R], rgba [R, 4]"""
        n_steps = min(MOST_STEPS, max(1, SAMPLES // len(origins)))
        x_RK3, deltas_RK, steps = self.ray_march(
            origins, directions, starts, steps, self.density_grid, self.aabb_scale, self.cone_angle, n_steps
        )
        seen_from_M3 = directions.repeat_interleave(n_steps, 0)
        raw_RK4 = self.network(x_RK3.flatten(0, 1), seen_from_M3).unflatten(0, (-1, n_steps))
        return steps, self.volume_composite(rgba, raw_RK4, deltas_RK)


def linear(srgb: Tensor) -> Tensor:
    bent = ((srgb.clamp_min(0.04045) + 0.055) / 1.055) ** 2.4
    return torch.where(srgb < 0.04045, srgb / 12.92, bent)
