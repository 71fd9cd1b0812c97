"""Weights of four bits with shared exponents (MXFP4) as floating-point numbers.

    w[..., 32 g + 2 i]     = E2M1[blocks[..., g, i] mod 16] 2^(scales[..., g] - 127)
    w[..., 32 g + 2 i + 1] = E2M1[blocks[..., g, i] div 16] 2^(scales[..., g] - 127)

G groups of 32 elements, in 16 bytes of two codes each, the low half first; E2M1 is 0, 0.5, 1, 1.5, 2, 3, 4, 6
and their negatives. Exact wherever the dtype, that of the module, holds the numbers.
Mirrors transformers.integrations.mxfp4.convert_moe_packed_tensors, which exchanges the last two dimensions
of what it returns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class LowBitDequant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dtype = torch.get_default_dtype()

    def forward(self, blocks: Tensor, scales: Tensor) -> Tensor:
        """blocks [..., G, 16] and scales [..., G] uint8 -> [..., 32 G]"""
        return kernels.low_bit_dequant(blocks, scales, self.dtype)
