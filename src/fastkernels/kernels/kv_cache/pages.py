"""Block tables as FlashInfer's page lists, and the wrappers that plan with them.

Planning reads the lengths on the host (a synchronisation where they are not known there), so it happens once
for a step: see plans.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastkernels.kernels.plans import lease, on_host

# FlashInfer recommends 128 MiB for split-KV partial results; prefills of 16,384 tokens and 64 heads need
# more.
WORKSPACE_BYTES = 256 * 2**20


class Pages(NamedTuple):
    """The pages of all rows in one list. All but `ids` lie on the host, where FlashInfer reads them."""

    starts_B1: Tensor  # int32, first page of each row; last entry: all pages
    ids: Tensor  # int32 on the device
    last_lens_B: Tensor  # int32, tokens on the row's last page; 0 for a row without tokens
    seq_lens_B: Tensor  # int32


class Planner:
    """A wrapper of FlashInfer. A plan lies in pinned memory until the device has copied it: only then may the
    wrapper plan again."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self._copied = torch.cuda.Event()

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapper with its plan."""
        self.wrapper.plan(*args, **kwargs)
        self._copied.record()
        return self.wrapper

    def is_free(self) -> bool:
        return self._copied.query()


class Planners:
    """Of each device as many as plans are on their way."""

    def __init__(self, make: Callable[[torch.device], Any]) -> None:
        self._make = make
        self._idle: dict[torch.device, list[Planner]] = {}

    def take(self, device: torch.device) -> Planner:
        """Until the scope of plans ends."""
        idle = self._idle.setdefault(device, [])
        return lease(idle, lambda: Planner(self._make(device)), Planner.is_free)


def page_list(seq_lens_B: Tensor, block_tables_BN: Tensor, block_size: int) -> Pages:
    """The page list of rows with `seq_lens_B` tokens."""
    lens_B = on_host(seq_lens_B)
    pages_B = (lens_B + block_size - 1) // block_size
    starts_B1 = torch.zeros(len(lens_B) + 1, dtype=torch.int32)
    torch.cumsum(pages_B, 0, out=starts_B1[1:])
    row = torch.repeat_interleave(torch.arange(len(lens_B)), pages_B.long())
    entry = torch.arange(len(row)) - starts_B1[row] + row * block_tables_BN.shape[1]
    ids = block_tables_BN.reshape(-1)[_to(entry, block_tables_BN.device)]
    last_lens_B = torch.where(lens_B > 0, (lens_B - 1) % block_size + 1, 0).int()
    return Pages(starts_B1, ids, last_lens_B, lens_B)


def _to(x: Tensor, device: torch.device) -> Tensor:
    """The copy is made in stream order; from memory that is not pinned it could wait for all before it."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


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
