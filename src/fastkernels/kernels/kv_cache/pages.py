"""Block tables as FlashInfer's page lists, and the wrappers that plan with them.

Planning reads the lengths on the host (one synchronisation), so it happens once for a step: see plans.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

# FlashInfer recommends 128 MiB for split-KV partial results; prefills of 16,384 tokens and 64 heads need
# more.
WORKSPACE_BYTES = 256 * 2**20


class Pages(NamedTuple):
    """The pages of all rows in one list. All but `ids` lie on the host, where FlashInfer reads them."""

    starts_B1: Tensor  # int32, first page of each row; last entry: all pages
    ids: Tensor  # int32 on the device
    last_lens_B: Tensor  # int32, tokens on the row's last page; 0 for a row without tokens
    seq_lens_B: Tensor  # int32


def page_list(seq_lens_B: Tensor, block_tables_BN: Tensor, block_size: int) -> Pages:
    """The page list of rows with `seq_lens_B` tokens; reads these lengths from the device."""
    lens_B = seq_lens_B.cpu()
    pages_B = (lens_B + block_size - 1) // block_size
    starts_B1 = torch.zeros(len(lens_B) + 1, dtype=torch.int32)
    torch.cumsum(pages_B, 0, out=starts_B1[1:])
    row = torch.repeat_interleave(torch.arange(len(lens_B)), pages_B.long())
    entry = torch.arange(len(row)) - starts_B1[row] + row * block_tables_BN.shape[1]
    ids = block_tables_BN.reshape(-1)[entry.to(block_tables_BN.device)]
    last_lens_B = torch.where(lens_B > 0, (lens_B - 1) % block_size + 1, 0).int()
    return Pages(starts_B1, ids, last_lens_B, lens_B)


def static(q: Tensor, k_cache: Tensor, scale: float, window: int) -> tuple:
    """What a plan depends on beside lengths: q heads, kv heads, head dim, block size, dtype, device, scale,
    window.
    """
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    return q.shape[1], num_kv_heads, head_dim, block_size, q.dtype, q.device, scale, window


@lru_cache
def workspace(device: torch.device) -> Tensor:
    """Scratch memory that a device's wrappers share: their kernels run in turn, on one stream."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
