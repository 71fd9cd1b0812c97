"""Images or latents as patches, row by row, whose values lie channel by channel: a convolution with filters
as large as its stride is a product with them.

B images, C channels, Y x X places, P patches of S x S places.
"""

from __future__ import annotations

from torch import Tensor


def to_patches(x: Tensor, size: int) -> Tensor:
    """[B, C, Y, X] -> [B, P, C S S]"""
    parts = x.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # B C y p x q
    return parts.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def from_patches(patches: Tensor, size: int, rows: int) -> Tensor:
    """[B, P, C S S], as so many rows of patches -> [B, C, Y, X]"""
    parts = patches.unflatten(2, (-1, size, size)).unflatten(1, (rows, -1))  # B y x C p q
    return parts.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
