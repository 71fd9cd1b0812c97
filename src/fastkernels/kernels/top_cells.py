"""The cells of a detector with the largest logit of any class.

    o = the K cells n with the largest max_c logits[n, c]      falling; equal ones: the lower n first

B images · N cells · C classes · K cells that are chosen, at most N. The choice is by logit and exact; 0 and
-0 are equal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel

_INDICES = (1 << 32) - 1
_MAGNITUDE = (1 << 31) - 1


def largest(x_BN: Tensor, count: int) -> Tensor:
    """Where the largest lie, falling; equal ones in their order."""
    return x_BN.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def largest_keys(x_BN: Tensor, count: int) -> Tensor:
    """The same by one partial sort: of numbers that float32 holds exactly, with their places below them."""
    bits_BN = x_BN.float().add(0.0).view(torch.int32)  # the sum turns -0 into 0, which it is equal to
    # Of negative numbers the magnitude's bits are turned round: the larger it is, the smaller the number.
    ordered_BN = bits_BN ^ ((bits_BN >> 31) & _MAGNITUDE)
    falling_N = _INDICES - torch.arange(x_BN.shape[-1], device=x_BN.device)
    keys_BN = (ordered_BN.long() << 32) + falling_N
    return _INDICES - (keys_BN.topk(count, dim=-1).values & _INDICES)


def too_wide(logits_BNC: Tensor) -> str | None:
    """Why `largest_keys` cannot serve these, or None."""
    return "orders logits that float32 holds exactly" if logits_BNC.dtype.itemsize > 4 else None


_top_cells = Kernel(
    "top_cells",
    "(Tensor logits, int count) -> Tensor",
    lambda logits_BNC, count: largest(logits_BNC.amax(-1), count).contiguous(),
    fake=lambda logits_BNC, count: logits_BNC.new_empty((len(logits_BNC), count), dtype=torch.int64),
    implementations=(
        Implementation(
            "torch",
            lambda logits_BNC, count: largest_keys(logits_BNC.amax(-1), count),
            devices=("cpu", "cuda"),
            unsupported=lambda logits_BNC, count: too_wide(logits_BNC),
        ),
    ),
    rows=lambda logits_BNC, count: len(logits_BNC),
)


def top_cells(logits_BNC: Tensor, count: int, *, impl: str | None = None) -> Tensor:
    """int64 [B, K], K = min(count, N), contiguous.

    Logits are finite. Raises KernelError when `impl` cannot serve the call.
    """
    return _top_cells(logits_BNC, min(count, logits_BNC.shape[1]), impl=impl)
