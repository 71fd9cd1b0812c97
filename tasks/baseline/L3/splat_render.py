"""A cloud of Gaussians to the images of several cameras.

    radii, u, z, conic = projection(Gaussians, cameras);  colour = max(0, SH(mu - camera) + 0.5)
    pairs of Gaussians and tiles, sorted by tile and depth;  images by blending front to back

C cameras, N Gaussians, K coefficients. `max_isects` bounds the pairs of all images together, so that nothing
is read on the host and a call can be captured. Where there are more pairs, the colours of all images are NaN.
With None the host reads how many there are. All is float32 (or float64).
Mirrors gsplat.rendering.rasterization with packed=False and rasterize_mode="classic".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.spherical_harmonics import SphericalHarmonics
from ..L1.tile_intersection import IsectOffsetEncode, IsectTiles
from ..L2.gaussian_splat import FullyFusedProjection, RasterizeToPixels


class Rasterization(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fully_fused_projection = FullyFusedProjection()
        self.spherical_harmonics = SphericalHarmonics()
        self.isect_tiles = IsectTiles()
        self.isect_offset_encode = IsectOffsetEncode()
        self.rasterize_to_pixels = RasterizeToPixels()

    def forward(
        self,
        means: Tensor,
        quats: Tensor,
        scales: Tensor,
        opacities: Tensor,
        colors: Tensor,
        viewmats: Tensor,
        Ks: Tensor,
        width: int,
        height: int,
        near_plane: float = 0.01,
        far_plane: float = 1e10,
        radius_clip: float = 0.0,
        eps2d: float = 0.3,
        sh_degree: int = 3,
        tile_size: int = 16,
        backgrounds: Tensor | None = None,
        max_isects: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """means [N, 3], quats [N, 4] (w, x, y, z), scales [N, 3], opacities [N], colors [N, K, 3] of which
        (sh_degree + 1)^2 coefficients are used, viewmats [C, 4, 4] from the world to rigid cameras,
        Ks [C, 3, 3], backgrounds [C, 3] -> render_colors [C, height, width, 3], render_alphas
        [C, height, width, 1]"""
        radii, means2d, depths, conics = self.fully_fused_projection(
            means, None, quats, scales, viewmats, Ks, width, height, eps2d, near_plane, far_plane,
            radius_clip, opacities,
        )  # fmt: skip
        # A camera looks from -R^T t: its matrix is a rotation and a shift.
        campos_C3 = -(viewmats[:, :3, :3] * viewmats[:, :3, 3:]).sum(1)
        dirs_CN3 = means - campos_C3[:, None]
        colors_CN3 = self.spherical_harmonics(sh_degree, dirs_CN3, colors, (radii > 0).all(-1))
        colors_CN3 = (colors_CN3 + 0.5).clamp_min(0)

        cameras, tiles = len(viewmats), (-(-width // tile_size), -(-height // tile_size))
        tiles_per_gauss, isect_ids, flatten_ids = self.isect_tiles(
            means2d, radii, depths, tile_size, *tiles, max_isects
        )
        isect_offsets = self.isect_offset_encode(isect_ids, cameras, *tiles)
        if max_isects is not None:
            if backgrounds is None:
                backgrounds = means.new_zeros(cameras, 3)
            fits = tiles_per_gauss.sum() <= max_isects
            backgrounds = torch.where(fits, backgrounds, torch.nan)
        opacities_CN = opacities.expand(cameras, -1).contiguous()
        return self.rasterize_to_pixels(
            means2d, conics, colors_CN3, opacities_CN, width, height, tile_size, isect_offsets, flatten_ids,
            backgrounds,
        )  # fmt: skip
