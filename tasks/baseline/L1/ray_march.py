"""Rays of cameras, and their samples: places on a lattice of steps that lie in occupied cells.

    rays    d = R normalise((x + 0.5 - cx) / fx, (y + 0.5 - cy) / fy, 1),  start = n(entry) + jitter
    march   p_k = o + t(start + k) d, k = step, step + 1, .. in the box; the first K whose cell is occupied
            x = (p_k - low) / aabb_scale,  delta = t(start + k + 1) - t(start + k)

C cameras, N = C H W rays, those of a camera row by row, R rays of a call, K = n_steps. The box is
0.5 +- aabb_scale / 2, n(t) the place of a distance on the lattice: steps are sqrt(3) / 1024 long near the
camera, and cone_angle times the distance behind that. The jitter is a part of a step that depends on the
pixel. density_grid has M = log2(aabb_scale) + 1 cascades of cells, eight to a byte, in Morton's order; a
place is looked up in the finest one that reaches it. A step is the next place on the lattice, -1 of a ray
that has ended; where it has fewer than K samples, x and delta are zero. All is float32 (or float64), steps
are int32.
Mirrors ngp.init_rays_with_payload_kernel_nerf with one sample of a pixel and a lens without distortion, and
ngp.generate_next_nerf_network_inputs with the skipping of ngp.advance_pos_nerf: here the place of a ray is a
whole number.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class InitRays(nn.Module):
    def forward(
        self, cameras: Tensor, Ks: Tensor, width: int, height: int, aabb_scale: int, cone_angle: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """cameras [C, 3, 4], [R | o] of cameras that look along z, from them to the box, Ks [C, 3, 3]
        -> origins [N, 3], directions [N, 3], starts [N], steps int32 [N]"""
        return kernels.init_rays(cameras, Ks, width, height, aabb_scale, cone_angle)


class RayMarch(nn.Module):
    def forward(
        self,
        origins: Tensor,
        directions: Tensor,
        starts: Tensor,
        steps: Tensor,
        density_grid: Tensor,
        aabb_scale: int,
        cone_angle: float,
        n_steps: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """origins [R, 3], directions [R, 3] of length one, starts [R], steps int32 [R], density_grid uint8
        [M, S^3 / 8] -> x [R, K, 3], deltas [R, K], steps int32 [R]"""
        return kernels.march_rays(
            origins, directions, starts, steps, density_grid, aabb_scale, cone_angle, n_steps
        )
