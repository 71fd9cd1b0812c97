"""Philox 4x32-10 in int64 arithmetic of plain PyTorch, the same numbers as Triton's `tl.philox`.

Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF


def philox(
    key: Tensor, counter: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words for each counter, int64 below 2^32, as the counter's. key: int64, all 64 bits."""
    key_0, key_1 = key & LOW, (key >> 32) & LOW
    c0, c1, c2, c3 = counter
    for _ in range(ROUNDS):
        # The product of two 32-bit words wraps in int64, but its bits are right: shift, then drop the sign's
        # copies.
        product_0, product_2 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = ((product_2 >> 32) & LOW) ^ c1 ^ key_0, product_2 & LOW
        c2, c3 = ((product_0 >> 32) & LOW) ^ c3 ^ key_1, product_0 & LOW
        key_0, key_1 = (key_0 + KEY_STEPS[0]) & LOW, (key_1 + KEY_STEPS[1]) & LOW
    return c0, c1, c2, c3


def exponential_noise(
    seeds_B: Tensor, positions_B: Tensor, vocabulary: int, dtype: torch.dtype, first: int = 0
) -> Tensor:
    """E_BV: standard exponential variables, -log of which is the Gumbel noise of `sample`, of the ids from
    `first`, a multiple of 4.

    w is small where the noise is large, so the rare large values keep their full resolution; log1p does not
    lose it.
    """
    groups = torch.arange(first // 4, first // 4 - (-vocabulary // 4), device=seeds_B.device)
    position_B1 = positions_B[:, None]
    counter = (groups.expand(len(seeds_B), -1), position_B1 & LOW, (position_B1 >> 32) & LOW, 0 * position_B1)
    words = torch.stack(philox(seeds_B[:, None], counter), -1).flatten(1)[:, :vocabulary]
    # Through float32 in every dtype: all implementations see the same w.
    w_BV = (words.float() * 2.0**-32 + 2.0**-33).clamp_(max=1 - 2.0**-24).to(dtype)
    return torch.log1p(w_BV.neg_()).neg_()
