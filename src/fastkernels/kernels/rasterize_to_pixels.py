"""Gaussians blended into images, tile by tile, front to back.

    d = u_g - pixel centre,  sigma = (A dx^2 + C dy^2) / 2 + B dx dy,  alpha = min(0.999, opacity e^-sigma)
    T' = T (1 - alpha);  out += alpha T colour;  T = T'            out + T background,  1 - T

A pixel begins with T = 1 and goes through the list of its tile, `flatten_ids` from the tile's offset to the
next one's. It skips what has sigma < 0 or alpha < 1/255, and ends before the first Gaussian that would make
T' <= 1e-4. C images · N Gaussians · D channels · M places, of which those below 0 are free and end a list.
Computed in float32 (float64 stays float64).

Roundings may decide what is skipped and where a pixel ends: `other_way`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.project_gaussians import LEAST_ALPHA

MOST_ALPHA = 0.999
LEAST_T = 1e-4
_undecided = 0.0  # how far from a bound, relative to it, what is compared counts as on its other side


def _reference(
    means2d_CN2: Tensor,
    conics_CN3: Tensor,
    colors_CND: Tensor,
    opacities_CN: Tensor,
    isect_offsets_CYX: Tensor,
    flatten_ids_M: Tensor,
    backgrounds_CD: Tensor | None,
    image_width: int,
    image_height: int,
    tile_size: int,
) -> tuple[Tensor, Tensor]:
    """One Gaussian of every tile at a time; tiles with long lists come first, so that those are the first.

    `left` is what the whole list would leave of the light, `through` what it leaves where the pixel ends.
    """
    images, high, wide = isect_offsets_CYX.shape
    channels, device, dtype = colors_CND.shape[-1], colors_CND.device, colors_CND.dtype
    starts_T = isect_offsets_CYX.flatten().long()
    entries = (flatten_ids_M >= 0).sum(dtype=torch.int64)
    counts_T, order_T = torch.cat((starts_T, entries[None])).diff().sort(descending=True, stable=True)
    starts_T, tile_T, within_P = starts_T[order_T], order_T % (high * wide), torch.arange(tile_size**2)
    x_P, y_P = (part.to(device) + 0.5 for part in (within_P % tile_size, within_P // tile_size))
    x_TP = ((tile_T % wide * tile_size)[:, None] + x_P).to(dtype)
    y_TP = ((tile_T // wide * tile_size)[:, None] + y_P).to(dtype)
    out_TPD = torch.zeros(*x_TP.shape, channels, dtype=dtype, device=device)
    left_TP, through_TP = torch.ones_like(x_TP), torch.ones_like(x_TP)
    means_G2, conics_G3, colors_GD = (each.flatten(0, 1) for each in (means2d_CN2, conics_CN3, colors_CND))
    lengths = counts_T.tolist()
    live = len(lengths)
    for step in range(lengths[0]):
        while lengths[live - 1] <= step:
            live -= 1
        id_T = flatten_ids_M[starts_T[:live] + step].long()
        u_T1, v_T1 = means_G2[id_T].split(1, -1)
        a_T1, b_T1, c_T1 = conics_G3[id_T].split(1, -1)
        dx, dy = u_T1 - x_TP[:live], v_T1 - y_TP[:live]
        sigma = 0.5 * (a_T1 * dx * dx + c_T1 * dy * dy) + b_T1 * dx * dy
        alpha = (opacities_CN.flatten()[id_T][:, None] * torch.exp(-sigma)).clamp_max(MOST_ALPHA)
        is_met = (sigma >= 0) & _decided(alpha >= LEAST_ALPHA, alpha, LEAST_ALPHA)
        alpha = torch.where(is_met, alpha, 0)
        left_TP[:live] *= 1 - alpha
        goes_on = _decided(left_TP[:live] > LEAST_T, left_TP[:live], LEAST_T)
        weight_TP = torch.where(goes_on, alpha * through_TP[:live], 0)
        out_TPD[:live] += weight_TP[..., None] * colors_GD[id_T][:, None]
        through_TP[:live] = torch.where(goes_on, left_TP[:live], through_TP[:live])
    out_TPD, through_TP = (torch.empty_like(x).index_copy_(0, order_T, x) for x in (out_TPD, through_TP))
    through_CYX1 = _image(through_TP[..., None], images, high, wide, tile_size, image_height, image_width)
    out_CYXD = _image(out_TPD, images, high, wide, tile_size, image_height, image_width)
    if backgrounds_CD is not None:
        out_CYXD = out_CYXD + through_CYX1 * backgrounds_CD[:, None, None]
    return out_CYXD, 1 - through_CYX1


def _decided(found: Tensor, x: Tensor, bound: float) -> Tensor:
    """Whether x is above its bound, or the other way."""
    return found ^ ((x - bound).abs() <= _undecided * bound) if _undecided else found


def _image(
    tiles_TPD: Tensor, images: int, high: int, wide: int, size: int, height: int, width: int
) -> Tensor:
    """[C, height, width, D] of the pixels of tiles [C high wide, size^2, D]."""
    parts = tiles_TPD.view(images, high, wide, size, size, -1).transpose(2, 3)
    return parts.reshape(images, high * size, wide * size, -1)[:, :height, :width].contiguous()


@contextmanager
def other_way(roundings: float) -> Iterator[None]:
    """In the body what roundings, of this size in all, could move over a bound is on its other side."""
    global _undecided
    _undecided, before = roundings, _undecided
    try:
        yield
    finally:
        _undecided = before


def _fake(means2d_CN2: Tensor, conics: Tensor, colors_CND: Tensor, opacities: Tensor, offsets: Tensor,
          ids: Tensor, backgrounds: Tensor | None, width: int, height: int, size: int
          ) -> tuple[Tensor, Tensor]:  # fmt: skip
    pixels = (len(means2d_CN2), height, width)
    return colors_CND.new_empty(*pixels, colors_CND.shape[-1]), colors_CND.new_empty(*pixels, 1)


_rasterize_to_pixels = Kernel(
    "rasterize_to_pixels",
    "(Tensor means2d, Tensor conics, Tensor colors, Tensor opacities, Tensor isect_offsets, "
    "Tensor flatten_ids, Tensor? backgrounds, int image_width, int image_height, int tile_size)"
    " -> (Tensor, Tensor)",
    _reference,
    fake=_fake,
    implementations=(Implementation("triton", f"{__name__}_triton"),),
    rows=lambda means2d_CN2, *_: means2d_CN2.shape[1],
    other_way=other_way,
)


def rasterize_to_pixels(
    means2d_CN2: Tensor,
    conics_CN3: Tensor,
    colors_CND: Tensor,
    opacities_CN: Tensor,
    isect_offsets_CYX: Tensor,
    flatten_ids_M: Tensor,
    backgrounds_CD: Tensor | None,
    image_width: int,
    image_height: int,
    tile_size: int,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(colours [C, height, width, D], alphas [C, height, width, 1]). All of one dtype, float32 or float64;
    offsets and ids int32 as tile_intersection gives them, for tiles that cover the image.

    Raises ValueError where they do not, KernelError when `impl` cannot serve the call. What offsets and ids
    hold is not looked at: the host would wait for a GPU.
    """
    wanted = (len(means2d_CN2), -(-image_height // tile_size), -(-image_width // tile_size))
    if tuple(isect_offsets_CYX.shape) != wanted:
        raise ValueError(
            f"rasterize_to_pixels: offsets {list(isect_offsets_CYX.shape)}, an image of {image_height} x "
            f"{image_width} has tiles {list(wanted)}"
        )
    return _rasterize_to_pixels(
        means2d_CN2, conics_CN3, colors_CND, opacities_CN, isect_offsets_CYX, flatten_ids_M, backgrounds_CD,
        image_width, image_height, tile_size, impl=impl,
    )  # fmt: skip
