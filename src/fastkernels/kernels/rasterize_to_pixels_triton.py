"""rasterize_to_pixels in Triton: a program for each tile, whose pixels go through its list together.

A program reads a Gaussian's ten numbers once for all of its pixels. After CHUNK of them it looks whether any
pixel is left, so that a tile ends soon after its last pixel has. `left` is what the list would leave of the
light: a pixel has ended when it is at most 1e-4, and `through` stays what it was before.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.project_gaussians import LEAST_ALPHA
from fastkernels.kernels.rasterize_to_pixels import LEAST_T, MOST_ALPHA

CHUNK = 32  # Gaussians between two looks at what is left
AHEAD = 4  # Gaussians whose numbers are on their way together
CHANNELS = 3
TILE_SIZES = (8, 16, 32)


def unsupported(kernel: str, *args: Any) -> str | None:
    tensors, tile_size = [arg for arg in args if isinstance(arg, Tensor)], args[-1]
    if args[2].shape[-1] != CHANNELS:
        return f"serves {CHANNELS} channels, not {args[2].shape[-1]}"
    if tile_size not in TILE_SIZES:
        return f"serves tiles of {TILE_SIZES} pixels, not {tile_size}"
    if not all(tensor.is_contiguous() for tensor in tensors):
        return "needs contiguous tensors"
    if wrong := {tensor.dtype for tensor in tensors if tensor.is_floating_point()} - {torch.float32}:
        return f"computes in float32, not {wrong.pop()}"
    return None


@triton.jit(do_not_specialize=["tiles", "entries", "wide"])
def _blend(means2d, conics, colors, opacities, offsets, ids, backgrounds, out, alphas, width, height, wide,
           tiles, entries, HAS_BACKGROUND: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
           AHEAD: tl.constexpr, LEAST_ALPHA: tl.constexpr, MOST_ALPHA: tl.constexpr,
           LEAST_T: tl.constexpr):  # fmt: skip
    tile = tl.program_id(0)
    image, place = tile // tiles, tile % tiles
    pixel = tl.arange(0, SIZE * SIZE)
    column, row = (place % wide) * SIZE + pixel % SIZE, (place // wide) * SIZE + pixel // SIZE
    inside = (column < width) & (row < height)
    x, y = column.to(tl.float32) + 0.5, row.to(tl.float32) + 0.5
    at = tl.load(offsets + tile)
    end = entries
    if tile + 1 < tl.num_programs(0):
        end = tl.load(offsets + tile + 1)
    through = tl.full([SIZE * SIZE], 1.0, tl.float32)
    left = tl.where(inside, 1.0, 0.0)
    red = tl.zeros([SIZE * SIZE], tl.float32)
    green = tl.zeros([SIZE * SIZE], tl.float32)
    blue = tl.zeros([SIZE * SIZE], tl.float32)
    most_left = tl.max(left, 0)
    while (at < end) & (most_left > LEAST_T):
        for i in tl.range(CHUNK, loop_unroll_factor=AHEAD):
            gaussian = tl.load(ids + at + i, mask=at + i < end, other=-1)
            is_there = gaussian >= 0
            g = tl.maximum(gaussian, 0).to(tl.int64)
            # A free place has an opacity of 0, so that nothing else asks for it.
            opacity = tl.load(opacities + g, mask=is_there, other=0.0)
            dx, dy = tl.load(means2d + 2 * g) - x, tl.load(means2d + 2 * g + 1) - y
            a, b, c = tl.load(conics + 3 * g), tl.load(conics + 3 * g + 1), tl.load(conics + 3 * g + 2)
            sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
            alpha = tl.minimum(opacity * tl.exp(-sigma), MOST_ALPHA)
            alpha = tl.where((sigma >= 0.0) & (alpha >= LEAST_ALPHA), alpha, 0.0)
            left = left * (1.0 - alpha)
            goes_on = left > LEAST_T
            weight = tl.where(goes_on, alpha * through, 0.0)
            red += weight * tl.load(colors + 3 * g)
            green += weight * tl.load(colors + 3 * g + 1)
            blue += weight * tl.load(colors + 3 * g + 2)
            through = tl.where(goes_on, left, through)
        at += CHUNK
        if tl.load(ids + at - 1, mask=at - 1 < end, other=-1) < 0:
            at = end
        most_left = tl.max(left, 0)
    if HAS_BACKGROUND:
        red += through * tl.load(backgrounds + 3 * image)
        green += through * tl.load(backgrounds + 3 * image + 1)
        blue += through * tl.load(backgrounds + 3 * image + 2)
    target = (image.to(tl.int64) * height + row) * width + column
    tl.store(out + 3 * target, red, mask=inside)
    tl.store(out + 3 * target + 1, green, mask=inside)
    tl.store(out + 3 * target + 2, blue, mask=inside)
    tl.store(alphas + target, 1.0 - through, mask=inside)


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
) -> tuple[Tensor, Tensor]:
    images, high, wide = isect_offsets_CYX.shape
    out_CYXD = colors_CND.new_empty(images, image_height, image_width, CHANNELS)
    alphas_CYX1 = colors_CND.new_empty(images, image_height, image_width, 1)
    if colors_CND.numel() == 0:  # nothing to read, not even behind a free place
        out_CYXD.zero_()
        if backgrounds_CD is not None:
            out_CYXD += backgrounds_CD[:, None, None]
        return out_CYXD, alphas_CYX1.zero_()
    _blend[(images * high * wide,)](
        means2d_CN2, conics_CN3, colors_CND, opacities_CN, isect_offsets_CYX, flatten_ids_M,
        colors_CND if backgrounds_CD is None else backgrounds_CD, out_CYXD, alphas_CYX1,
        image_width, image_height, wide, high * wide, len(flatten_ids_M),
        HAS_BACKGROUND=backgrounds_CD is not None, SIZE=tile_size, CHUNK=CHUNK, AHEAD=AHEAD,
        LEAST_ALPHA=LEAST_ALPHA, MOST_ALPHA=MOST_ALPHA, LEAST_T=LEAST_T, num_warps=2,
    )  # fmt: skip
    return out_CYXD, alphas_CYX1
