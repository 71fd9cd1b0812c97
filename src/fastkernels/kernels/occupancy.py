"""A grid of bits for each cascade says which cells of a scene hold something; cells lie in Morton's order.

    cascade m is a cube of side 2^m around (0.5, 0.5, 0.5) with S^3 cells
    cell (x, y, z) of it is bit .. z1 y1 x1 z0 y0 x0 of row m,  eight to a byte, the lowest first

A cell that holds an occupied cell of the cascade below is occupied: what passes a free one misses nothing.
"""

from __future__ import annotations

from torch import Tensor

_SPREADS = ((16, 0xFF0000FF), (8, 0x0F00F00F), (4, 0xC30C30C3), (2, 0x49249249))


def cascades_of(aabb_scale: int) -> int:
    """Cubes of side 1, 2, .. aabb_scale. ValueError where it is no power of two."""
    if aabb_scale < 1 or aabb_scale & aabb_scale - 1:
        raise ValueError(f"aabb_scale must be a power of two, not {aabb_scale}")
    return aabb_scale.bit_length()


def side_of(density_grid_MB: Tensor, aabb_scale: int) -> int:
    """S. ValueError where it is no power of two, or the cascades are others."""
    cascades, size = density_grid_MB.shape
    side = round((8 * size) ** (1 / 3))
    if cascades != cascades_of(aabb_scale) or side & side - 1 or side**3 != 8 * size:
        wanted = f"[{cascades_of(aabb_scale)}, S^3 / 8] with S a power of two"
        raise ValueError(
            f"an occupancy grid {list(density_grid_MB.shape)} for aabb_scale {aabb_scale}: {wanted}"
        )
    return side


def morton(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """int64; coordinates below 1024."""
    return _spread(x) | _spread(y) << 1 | _spread(z) << 2


def _spread(x: Tensor) -> Tensor:
    for by, mask in _SPREADS:
        x = (x | x << by) & mask
    return x
