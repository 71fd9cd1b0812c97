"""Which Gaussians each tile of an image must draw, front to back.

    isect_tiles           a pair for each tile that the box of a Gaussian covers, u - r to u + r, sorted by
                          image, tile and depth; equal depths keep the order of the input
    isect_offset_encode   where the pairs of each tile begin among them

    key = image << (32 + b) | tile << 32 | bits of the depth as float32      b = floor(log2(tiles)) + 1
    tiles from floor((u - r) / tile_size) to before ceil((u + r) / tile_size), cut to the image

C images · N Gaussians · M places for pairs. How many pairs there are depends on the scene. `max_isects` is
the caller's bound: M is that, nothing is read on the host, and a call can be captured in a CUDA graph. Places
behind the last pair hold the key 2^62 and id -1. Where there are more pairs than places, some are left out,
and tiles_per_gauss adds up to more than M: that is the caller's to look at. With None the host reads the
number, and M is it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

NONE = 1 << 62  # the key of a free place, above those of pairs: images and tiles have 30 bits
_SHORT = torch.iinfo(torch.int16).max

Pairs = tuple[Tensor, Tensor, Tensor]


def tile_bits(tile_width: int, tile_height: int) -> int:
    return (tile_width * tile_height).bit_length()


def _boxes(
    means2d_CN2: Tensor, radii_CN2: Tensor, tile_size: int, tile_width: int, tile_height: int
) -> tuple[Tensor, Tensor]:
    """(the first tile, how many) of each Gaussian, int64 [C, N, 2]. In float64: no rounding decides."""
    centre_CN2, radius_CN2 = means2d_CN2.double(), radii_CN2.double()
    bounds = ((centre_CN2 - radius_CN2) / tile_size).floor(), ((centre_CN2 + radius_CN2) / tile_size).ceil()
    first_CN2, after_CN2 = (
        torch.stack((bound[..., 0].clamp(0, tile_width), bound[..., 1].clamp(0, tile_height)), -1).long()
        for bound in bounds
    )
    is_drawn_CN1 = (radius_CN2 > 0).all(-1, keepdim=True)
    return first_CN2, torch.where(is_drawn_CN1, after_CN2 - first_CN2, 0)


def _emitted(
    first_G2: Tensor, wide_G: Tensor, counts_G: Tensor, tile_width: int, places: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each place its Gaussian, its tile and whether it has a pair. No size depends on data."""
    ends_G = counts_G.cumsum(0)
    place_M = torch.arange(places, device=counts_G.device)
    at_M = torch.searchsorted(ends_G, place_M, right=True).clamp_max(max(len(counts_G) - 1, 0))
    within_M = place_M - (ends_G - counts_G)[at_M]
    across_M = wide_G[at_M].clamp_min(1)
    row_M, column_M = within_M // across_M, within_M % across_M
    tile_M = (first_G2[at_M, 1] + row_M) * tile_width + first_G2[at_M, 0] + column_M
    return at_M, tile_M, place_M < ends_G[-1]


def _places(counts: Tensor, max_isects: int | None) -> int:
    return int(counts.sum()) if max_isects is None else max_isects


def _none(means2d_CN2: Tensor, places: int) -> Pairs:
    """The pairs of no Gaussian."""
    return (
        means2d_CN2.new_zeros(means2d_CN2.shape[:2], dtype=torch.int32),
        means2d_CN2.new_full((places,), NONE, dtype=torch.int64),
        means2d_CN2.new_full((places,), -1, dtype=torch.int32),
    )


def _reference(
    means2d_CN2: Tensor,
    radii_CN2: Tensor,
    depths_CN: Tensor,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    max_isects: int | None,
) -> Pairs:
    """In the order of the input, then sorted by the whole key."""
    if not depths_CN.numel():
        return _none(means2d_CN2, max_isects or 0)
    first_CN2, size_CN2 = _boxes(means2d_CN2, radii_CN2, tile_size, tile_width, tile_height)
    counts_CN = size_CN2.prod(-1)
    boxes = first_CN2.flatten(0, 1), size_CN2[..., 0].flatten(), counts_CN.flatten()
    at_M, tile_M, is_pair_M = _emitted(*boxes, tile_width, _places(counts_CN, max_isects))
    image_M = at_M // depths_CN.shape[1] << tile_bits(tile_width, tile_height)
    depth_M = depths_CN.float().view(torch.int32).flatten()[at_M].long() & 0xFFFFFFFF
    key_M = torch.where(is_pair_M, (image_M | tile_M) << 32 | depth_M, NONE)
    ids_M = torch.where(is_pair_M, at_M, -1).int()
    sorted_M, order_M = key_M.sort(stable=True)
    return counts_CN.int(), sorted_M, ids_M[order_M]


def _in_two_steps(
    means2d_CN2: Tensor,
    radii_CN2: Tensor,
    depths_CN: Tensor,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    max_isects: int | None,
) -> Pairs:
    """Gaussians are sorted by depth before they have pairs, and pairs by their tile alone: a radix sort of
    C N keys of 32 bits and of M keys of 16, where the whole key has 64."""
    if not depths_CN.numel():
        return _none(means2d_CN2, max_isects or 0)
    first_CN2, size_CN2 = _boxes(means2d_CN2, radii_CN2, tile_size, tile_width, tile_height)
    counts_CN = size_CN2.prod(-1)
    bits_CN, order_CN = depths_CN.float().view(torch.int32).sort(dim=-1, stable=True)
    images, number = depths_CN.shape
    image_C1 = torch.arange(images, device=depths_CN.device)[:, None]
    from_G = (order_CN + image_C1 * number).flatten()
    boxes = first_CN2.flatten(0, 1)[from_G], size_CN2[..., 0].flatten()[from_G], counts_CN.flatten()[from_G]
    at_M, tile_M, is_pair_M = _emitted(*boxes, tile_width, _places(counts_CN, max_isects))
    tiles = tile_width * tile_height
    kind = torch.int16 if images * tiles < _SHORT else torch.int32
    tile_M = torch.where(is_pair_M, at_M // number * tiles + tile_M, images * tiles).to(kind)
    tile_M, order_M = tile_M.sort(stable=True)
    at_M, is_pair_M, tile_M = at_M[order_M], is_pair_M[order_M], tile_M.long()
    image_M = tile_M // tiles << tile_bits(tile_width, tile_height)
    depth_M = bits_CN.flatten()[at_M].long() & 0xFFFFFFFF
    key_M = torch.where(is_pair_M, (image_M | tile_M % tiles) << 32 | depth_M, NONE)
    return counts_CN.int(), key_M, torch.where(is_pair_M, from_G[at_M], -1).int()


def _unbounded(*args: object) -> str | None:
    return "needs max_isects: one graph has no number that the host reads" if args[-1] is None else None


def _fake(means2d_CN2: Tensor, radii: Tensor, depths: Tensor, size: int, wide: int, high: int,
          max_isects: int | None) -> Pairs:  # fmt: skip
    if max_isects is None:
        raise ValueError(
            "isect_tiles: without max_isects the number of pairs is known only when they are there"
        )
    return _none(means2d_CN2, max_isects)


def _offsets_reference(isect_ids_M: Tensor, n_images: int, tile_width: int, tile_height: int) -> Tensor:
    """Counts of each tile, added up."""
    bits, tiles = tile_bits(tile_width, tile_height), tile_width * tile_height
    place_M = isect_ids_M[isect_ids_M != NONE] >> 32
    tile_M = (place_M >> bits) * tiles + (place_M & (1 << bits) - 1)
    counts_T = torch.bincount(tile_M, minlength=n_images * tiles)
    return (counts_T.cumsum(0) - counts_T).int().view(n_images, tile_height, tile_width)


def _offsets_by_search(isect_ids_M: Tensor, n_images: int, tile_width: int, tile_height: int) -> Tensor:
    """The first key that is not below the smallest one of the tile: no size depends on data."""
    tile_T = torch.arange(tile_width * tile_height, device=isect_ids_M.device)
    image_C1 = torch.arange(n_images, device=isect_ids_M.device)[:, None]
    least_CT = (image_C1 << tile_bits(tile_width, tile_height) | tile_T) << 32
    found_CT = torch.searchsorted(isect_ids_M, least_CT, out_int32=True)
    return found_CT.view(n_images, tile_height, tile_width)


_isect_tiles = Kernel(
    "isect_tiles",
    "(Tensor means2d, Tensor radii, Tensor depths, int tile_size, int tile_width, int tile_height, "
    "int? max_isects) -> (Tensor, Tensor, Tensor)",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("inductor", compiled(_in_two_steps), unsupported=_unbounded),
        Implementation("torch", _in_two_steps, devices=("cpu", "cuda")),
    ),
    rows=lambda means2d_CN2, *_: means2d_CN2.shape[1],
)

_isect_offset_encode = Kernel(
    "isect_offset_encode",
    "(Tensor isect_ids, int n_images, int tile_width, int tile_height) -> Tensor",
    _offsets_reference,
    fake=lambda isect_ids_M, n_images, tile_width, tile_height: isect_ids_M.new_empty(
        (n_images, tile_height, tile_width), dtype=torch.int32
    ),
    implementations=(Implementation("torch", _offsets_by_search, devices=("cpu", "cuda")),),
    rows=lambda isect_ids_M, *_: len(isect_ids_M),
)


def isect_tiles(
    means2d_CN2: Tensor,
    radii_CN2: Tensor,
    depths_CN: Tensor,
    tile_size: int,
    tile_width: int,
    tile_height: int,
    max_isects: int | None = None,
    *,
    impl: str | None = None,
) -> Pairs:
    """(tiles_per_gauss int32 [C, N], isect_ids int64 [M], flatten_ids int32 [M] in [0, C N), or -1). means2d
    and depths of one floating-point dtype, depths above 0; radii whole numbers of any dtype, a Gaussian with
    a radius of 0 has no pair.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _isect_tiles(
        means2d_CN2, radii_CN2, depths_CN, tile_size, tile_width, tile_height, max_isects, impl=impl
    )


def isect_offset_encode(
    isect_ids_M: Tensor, n_images: int, tile_width: int, tile_height: int, *, impl: str | None = None
) -> Tensor:
    """int32 [n_images, tile_height, tile_width] of rising keys [M]; free places may follow.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _isect_offset_encode(isect_ids_M, n_images, tile_width, tile_height, impl=impl)
