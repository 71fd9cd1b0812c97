"""Latents of an image as a transformer's tokens: 2 x 2 neighbours of all channels are one token.

A latent stands for 8 x 8 pixels, a token for 16 x 16. Channels of a token: (channel, row, column), channel
slowest. Tokens row by row; each has the coordinates (0, row, column), those of the prompt (0, 0, 0).
"""

from __future__ import annotations

import torch
from torch import Tensor

PATCH = 2  # latents of a token's side
TOKEN_PIXELS = 16  # pixels of a token's side


def grid(height: int, width: int) -> tuple[int, int]:
    """Rows and columns of tokens of an image in pixels."""
    return height // TOKEN_PIXELS, width // TOKEN_PIXELS


def pack(latents_CYX: Tensor) -> Tensor:
    """[C, rows, columns] -> [rows/2 * columns/2, 4 C]"""
    tiles = latents_CYX.unflatten(2, (-1, PATCH)).unflatten(1, (-1, PATCH))  # [C, y, dy, x, dx]
    return tiles.permute(1, 3, 0, 2, 4).flatten(2).flatten(0, 1)


def unpack(tokens_BLC: Tensor, rows: int, columns: int) -> Tensor:
    """[B, rows * columns, 4 C] -> [B, 2 rows, 2 columns, C]: the inverse of `pack`, of a batch and channels
    last."""
    tiles = tokens_BLC.unflatten(2, (-1, PATCH, PATCH)).unflatten(1, (rows, columns))  # [B, y, x, C, dy, dx]
    return tiles.permute(0, 1, 4, 2, 5, 3).flatten(3, 4).flatten(1, 2)


def grid_ids(rows: int, columns: int, device: torch.device) -> Tensor:
    """int64 [rows * columns, 3]"""
    y, x = (torch.arange(side, device=device) for side in (rows, columns))
    ids_YX = (y[:, None].expand(rows, columns), x.expand(rows, columns))
    return torch.stack((torch.zeros_like(ids_YX[0]), *ids_YX), dim=-1).flatten(0, 1)


def noise(channels: int, rows: int, columns: int, seed: int, dtype: torch.dtype) -> Tensor:
    """[rows * columns, channels] of tokens on the CPU, drawn as latents in `dtype` from a generator of its
    own: an image does not depend on its company."""
    generator = torch.Generator().manual_seed(seed)
    shape = (channels // PATCH**2, PATCH * rows, PATCH * columns)
    return pack(torch.randn(shape, generator=generator, dtype=dtype))
