"""Halves of an image autoencoder that are vision transformers: images to latents, and latents to images.

    encoder    x = patches(image) We^T + be;  x = block_i(x) for each i;  m = layer_norm(x; w, b) Wq^T + bq
    decoder    x = z Wp^T + bp;  x = block_i(x) for each i;  image = unpatch(layer_norm(x; w, b) Wo^T + bo)

B images of Y x X pixels, L patches of each, row by row, D hidden, C latent channels; m: mean and log
variance. A quarter of a head's features turns by the row, a quarter by the column, the rest not at all.
Rounded to the dtype of the module after each product, norm and sum.
Mirrors vae.AutoencoderKL of open-oasis, its encoder and its decoder.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.patches import from_patches, to_patches

from ..L1.diffusion_rope import PixelRotaryEmbedding
from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from .vision_block import PixelBlock

EPS = 1e-6
COLOURS = 3


class ViTEncoder(nn.Module):
    def __init__(
        self,
        latent_dim: int,
        input_height: int,
        input_width: int,
        patch_size: int,
        enc_dim: int,
        enc_depth: int,
        enc_heads: int,
        intermediate_size: int,
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.grid = [input_height // patch_size, input_width // patch_size]
        self.patch_embedder = Linear(COLOURS * patch_size**2, enc_dim, bias=True)
        self.rope = _rope(enc_dim // enc_heads, self.grid)
        self.blocks = nn.ModuleList(
            PixelBlock(enc_dim, intermediate_size, enc_heads, EPS) for _ in range(enc_depth)
        )
        self.norm = LayerNorm(enc_dim, EPS)
        self.quant_conv = Linear(enc_dim, 2 * latent_dim, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """[B, 3, Y, X] -> [B, L, 2 C]"""
        x_BLD = self.patch_embedder(to_patches(x, self.patch_size))
        return self.quant_conv(self.norm(_through(self.blocks, self.rope, x_BLD)))


class ViTDecoder(nn.Module):
    def __init__(
        self,
        latent_dim: int,
        input_height: int,
        input_width: int,
        patch_size: int,
        dec_dim: int,
        dec_depth: int,
        dec_heads: int,
        intermediate_size: int,
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.grid = [input_height // patch_size, input_width // patch_size]
        self.post_quant_conv = Linear(latent_dim, dec_dim, bias=True)
        self.rope = _rope(dec_dim // dec_heads, self.grid)
        self.blocks = nn.ModuleList(
            PixelBlock(dec_dim, intermediate_size, dec_heads, EPS) for _ in range(dec_depth)
        )
        self.norm = LayerNorm(dec_dim, EPS)
        self.predictor = Linear(dec_dim, COLOURS * patch_size**2, bias=True)

    def forward(self, z: Tensor) -> Tensor:
        """[B, L, C] -> [B, 3, Y, X]"""
        x_BLD = _through(self.blocks, self.rope, self.post_quant_conv(z))
        return from_patches(self.predictor(self.norm(x_BLD)), self.patch_size, self.grid[0])


def _rope(head_size: int, grid: list[int]) -> PixelRotaryEmbedding:
    return PixelRotaryEmbedding(head_size // 4, float(grid[0] * grid[1]), head_size, grid)


def _through(blocks: nn.ModuleList, rope: PixelRotaryEmbedding, x_BLD: Tensor) -> Tensor:
    rotary_LK = rope(torch.cartesian_prod(*(torch.arange(side, device=x_BLD.device) for side in rope.grid)))
    for block in blocks:
        x_BLD = block(x_BLD, rotary_LK)
    return x_BLD
