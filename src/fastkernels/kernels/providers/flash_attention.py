"""FlashAttention's kernels for Hopper: what the packages that have them can serve.

They read keys in whole tiles. What lies behind a row's end counts as zeros, in blocks shorter than a tile.
Keys before a window are read, too, and weighted with zero: they must be finite, as all are that any row has
stored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.plans import planned_on_device

SMALLEST_TILE = 64  # keys; the copy engine fetches a block whole that is a multiple of a tile
MAX_HEAD_DIM = 256


def unsupported(kernel: str, q: Tensor, k: Tensor, v: Tensor, *rest: Any, divisor: int = 8) -> str | None:
    """Sinks aside. divisor: of the head dimensions over a paged cache."""
    if not on_hopper(q):
        return "needs compute capability 9"
    if kernel == "dense_attention":
        divisor = 8
        if rest[-1] is not None:
            return "serves no bias"
    elif reason := no_blocks(k, rest):
        return reason
    if (head_dim := q.shape[-1]) > MAX_HEAD_DIM or head_dim % divisor:
        return f"serves head dimensions up to {MAX_HEAD_DIM} that {divisor} divides, not {head_dim}"
    return checks.not_half(q, k, v) or checks.not_aligned(q, k, v)


def no_blocks(cache: Tensor, rest: tuple[Any, ...]) -> str | None:
    """Of a paged cache and its block tables, the only argument of two dimensions in the rest."""
    if (block_size := cache.shape[1]) >= SMALLEST_TILE:
        return f"serves blocks of fewer than {SMALLEST_TILE} tokens, not {block_size}"
    if any(isinstance(x, Tensor) and x.ndim == 2 and x.stride(1) != 1 for x in rest):
        return "needs block tables with a contiguous last dimension"
    return None


def on_hopper(x: Tensor) -> bool:
    return torch.cuda.get_device_capability(x.device)[0] == 9


def sinks(kernel: str, rest: tuple[Any, ...]) -> Tensor | None:
    """Of a call over a paged cache, whose last argument they are where it has any."""
    is_given = kernel != "dense_attention" and isinstance(rest[-1], Tensor)
    return rest[-1] if is_given else None


def from_zero(query_starts_B1: Tensor) -> Tensor:
    """The first query of each row, counted from the first row's."""
    return planned_on_device(
        "from_zero", (query_starts_B1,), (), lambda: query_starts_B1 - query_starts_B1[:1]
    )
