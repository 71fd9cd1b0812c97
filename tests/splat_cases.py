"""Lists of Gaussians for tiles, and their images pixel by pixel: empty tiles and lists, lists as long as the
Triton kernel's chunks (32), free places, an image smaller than a tile."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Blend(NamedTuple):
    means2d: Tensor
    conics: Tensor
    colors: Tensor
    opacities: Tensor
    isect_offsets: Tensor
    flatten_ids: Tensor
    backgrounds: Tensor | None
    image_width: int
    image_height: int
    tile_size: int

    def on(self, device: str, dtype: torch.dtype) -> Blend:
        def moved(part: Tensor) -> Tensor:
            return part.to(device, dtype if part.is_floating_point() else part.dtype)

        return Blend(*(moved(part) if isinstance(part, Tensor) else part for part in self))


# (lengths of the lists of all tiles, images, high, wide, width, height, tile size, free places, background)
LISTS = {
    "odd-sides": ([5, 0, 32, 33, 1, 0, 64, 2, 7, 0, 0, 40], 2, 2, 3, 40, 17, 16, 9, True),
    "whole-tiles": ([31, 65, 0, 3], 1, 2, 2, 16, 16, 8, 0, False),
    "smaller-than-a-tile": ([3], 1, 1, 1, 5, 3, 16, 40, True),
    "none": ([0, 0], 1, 1, 2, 32, 16, 16, 5, True),
    "no-places": ([0, 0], 1, 1, 2, 32, 16, 16, 0, False),
}


def blend(name: str) -> Blend:
    """Float32. Opacities of 0 to 1: many pixels end within their lists."""
    lengths, images, high, wide, width, height, size, free, has_background = LISTS[name]
    generator, number = torch.Generator().manual_seed(len(name)), 20

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) * (high - low) + low

    wide_N2, tilt_N = uniform(0.05, 0.5, images, number, 2), uniform(-0.9, 0.9, images, number)
    a_N, c_N = wide_N2.square().unbind(-1)
    conics = torch.stack((a_N, tilt_N * wide_N2.prod(-1), c_N), -1)
    conics[:, 0] = -conics[:, 0]  # no ellipse: sigma is below 0, and it is skipped
    position = uniform(0, 1, images, number, 2) * torch.tensor((width, height))
    ids = torch.randint(images * number, (sum(lengths),), generator=generator)
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    return Blend(
        position,
        conics,
        uniform(0, 1, images, number, 3),
        uniform(0, 1, images, number),
        starts.int().view(images, high, wide),
        torch.cat((ids, torch.full((free,), -1))).int(),
        uniform(0, 1, images, 3) if has_background else None,
        width,
        height,
        size,
    )


def answer(b: Blend) -> tuple[Tensor, Tensor]:
    """In float64, a pixel at a time."""
    images, high, wide = b.isect_offsets.shape
    out = torch.zeros(images, b.image_height, b.image_width, 3, dtype=torch.float64)
    alphas = torch.zeros(images, b.image_height, b.image_width, 1, dtype=torch.float64)
    ids, starts = b.flatten_ids[b.flatten_ids >= 0].tolist(), b.isect_offsets.flatten().tolist()
    means, conics, colors = (x.double().flatten(0, 1).tolist() for x in (b.means2d, b.conics, b.colors))
    opacities = b.opacities.double().flatten().tolist()
    for image in range(images):
        for y in range(b.image_height):
            for x in range(b.image_width):
                tile = (image * high + y // b.tile_size) * wide + x // b.tile_size
                end = starts[tile + 1] if tile + 1 < len(starts) else len(ids)
                through, colour = 1.0, [0.0, 0.0, 0.0]
                for n in ids[starts[tile] : end]:
                    dx, dy = means[n][0] - x - 0.5, means[n][1] - y - 0.5
                    sigma = (conics[n][0] * dx * dx + conics[n][2] * dy * dy) / 2 + conics[n][1] * dx * dy
                    if sigma < 0 or (alpha := min(0.999, opacities[n] * math.exp(-sigma))) < 1 / 255:
                        continue
                    if through * (1 - alpha) <= 1e-4:
                        break
                    colour = [old + alpha * through * new for old, new in zip(colour, colors[n])]
                    through *= 1 - alpha
                behind = [0.0] * 3 if b.backgrounds is None else b.backgrounds[image].tolist()
                colour = [old + through * new for old, new in zip(colour, behind)]
                out[image, y, x] = torch.tensor(colour, dtype=torch.float64)
                alphas[image, y, x] = 1 - through
    return out, alphas
