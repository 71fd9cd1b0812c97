"""Gaussians as ellipses on images, and their blending.

    projection   S = R diag(s)^2 R^T;  p = W3 mu + t;  S2 = J W3 S W3^T J^T + eps2d I
                 u = (fx p.x / p.z + cx, fy p.y / p.z + cy);  conic = S2^-1
                 radii = ceil(min(3.33, sqrt(2 ln(255 opacity))) sqrt(diag S2))
    rasterize    alpha = min(0.999, opacity exp(-d^T conic d / 2)),  d = u - pixel centre
                 out += alpha T colour;  T = T (1 - alpha)           front to back
                 skipped: alpha < 1/255;  the end: before T would be 1e-4 or less

C cameras, N Gaussians, D channels. J is the derivative of u at p, with x / z and y / z clamped to the image
and 0.3 of half its size around it; u has no clamp. Radii are 0 of what is not seen: p.z outside the planes,
det S2 <= 0, opacity < 1/255, both radii within radius_clip, or a box beside the image. Where p.z is outside
or det S2 <= 0, all results are 0. All is float32 (or float64). Radii are whole numbers in that dtype, because
a rounding may decide between two of them; gsplat has int32.
Mirrors gsplat.fully_fused_projection with packed=False, gsplat.rasterize_to_pixels with packed=False.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class FullyFusedProjection(nn.Module):
    def forward(
        self,
        means: Tensor,
        covars: None,
        quats: Tensor,
        scales: Tensor,
        viewmats: Tensor,
        Ks: Tensor,
        width: int,
        height: int,
        eps2d: float = 0.3,
        near_plane: float = 0.01,
        far_plane: float = 1e10,
        radius_clip: float = 0.0,
        opacities: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """means [N, 3], quats [N, 4] (w, x, y, z), scales [N, 3], viewmats [C, 4, 4] from the world to the
        camera, Ks [C, 3, 3], opacities [N] -> radii [C, N, 2], means2d [C, N, 2], depths [C, N],
        conics [C, N, 3]. Covariances in the place of quats and scales are not served: covars is None."""
        return kernels.project_gaussians(
            means, quats, scales, viewmats, Ks, opacities, width, height, eps2d, near_plane, far_plane,
            radius_clip,
        )  # fmt: skip


class RasterizeToPixels(nn.Module):
    def forward(
        self,
        means2d: Tensor,
        conics: Tensor,
        colors: Tensor,
        opacities: Tensor,
        image_width: int,
        image_height: int,
        tile_size: int,
        isect_offsets: Tensor,
        flatten_ids: Tensor,
        backgrounds: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """means2d [C, N, 2], conics [C, N, 3], colors [C, N, D], opacities [C, N], isect_offsets
        int32 [C, tile_height, tile_width], flatten_ids int32 [M], backgrounds [C, D] -> render_colors
        [C, image_height, image_width, D], render_alphas [C, image_height, image_width, 1].

        The list of a tile goes to the next one's offset; an id below 0 is a free place, and ends it.
        """
        return kernels.rasterize_to_pixels(
            means2d, conics, colors, opacities, isect_offsets, flatten_ids, backgrounds, image_width,
            image_height, tile_size,
        )  # fmt: skip
