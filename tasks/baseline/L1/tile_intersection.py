"""Which Gaussians each tile of an image must draw, front to back.

    isect_tiles           a pair for each tile that the box u - r .. u + r of a Gaussian covers:
                          key = image << (32 + b) | tile << 32 | bits of its depth, id = image N + n
                          sorted by key; equal keys keep the order of the Gaussians
    isect_offset_encode   where the pairs of each tile begin

C images, N Gaussians, b = floor(log2(tiles)) + 1. M = max_isects is the bound of the caller: how many pairs
there are depends on the scene. Free places are the last ones, with key 2^62 and id -1. With
max_isects None the host reads the number. Tiles are from floor((u - r) / tile_size) to before
ceil((u + r) / tile_size). Exact: a depth has its bits as float32.
Mirrors gsplat.isect_tiles and gsplat.isect_offset_encode.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class IsectTiles(nn.Module):
    def forward(
        self,
        means2d: Tensor,
        radii: Tensor,
        depths: Tensor,
        tile_size: int,
        tile_width: int,
        tile_height: int,
        max_isects: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """means2d [C, N, 2], radii [C, N, 2] whole numbers, depths [C, N] -> tiles_per_gauss int32 [C, N],
        isect_ids int64 [M], flatten_ids int32 [M]"""
        return kernels.isect_tiles(means2d, radii, depths, tile_size, tile_width, tile_height, max_isects)


class IsectOffsetEncode(nn.Module):
    def forward(self, isect_ids: Tensor, n_images: int, tile_width: int, tile_height: int) -> Tensor:
        """int64 [M], rising -> int32 [C, tile_height, tile_width]"""
        return kernels.isect_offset_encode(isect_ids, n_images, tile_width, tile_height)
