"""Serialised voxels put together to voxels of twice the side: which become one, and the orders of those.

    cluster[n] = place of code[0, n] >> 3 among the different ones, which rise
    indices = order[0],  cluster m has the voxels indices[idx_ptr[m] .. idx_ptr[m + 1] - 1]
    head[m] = indices[idx_ptr[m]],  code'[o, m] = code[o, head[m]] >> 3,  order' and inverse' of these

N voxels · M clusters · O curves (serialize.py). M is the caller's to know, so nothing is read on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.serialize import inverse_of

Coarse = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _finish(code_ON: Tensor, indices_N: Tensor, cluster_N: Tensor, idx_ptr_M1: Tensor) -> Coarse:
    head_M = indices_N[idx_ptr_M1[:-1]]
    code_OM = code_ON[:, head_M] >> 3
    order_OM = code_OM.argsort(-1)
    return code_OM, order_OM, inverse_of(order_OM), cluster_N, idx_ptr_M1, head_M


def _reference(code_ON: Tensor, order_ON: Tensor, clusters: int) -> Coarse:
    """By the different codes. ValueError where they are not so many as the caller says."""
    found_M, cluster_N, counts_M = (code_ON[0] >> 3).unique(return_inverse=True, return_counts=True)
    if len(found_M) != clusters:
        raise ValueError(f"{len(found_M)} different voxels of twice the side, not {clusters}")
    ends_M = counts_M.cumsum(0)
    return _finish(code_ON, order_ON[0], cluster_N, torch.cat((ends_M.new_zeros(1), ends_M)))


def _counted(code_ON: Tensor, order_ON: Tensor, clusters: int) -> Coarse:
    """Where codes in order begin to differ: no size depends on data."""
    indices_N = order_ON[0]
    parents_N = code_ON[0][indices_N] >> 3
    begins_N = torch.ones_like(parents_N, dtype=torch.bool)
    begins_N[1:] = parents_N[1:] != parents_N[:-1]
    rising_N = begins_N.cumsum(0) - 1
    cluster_N = torch.empty_like(rising_N).scatter_(0, indices_N, rising_N)
    place_M1 = torch.arange(clusters + 1, device=code_ON.device)
    return _finish(code_ON, indices_N, cluster_N, torch.searchsorted(rising_N, place_M1))


def _fake(code_ON: Tensor, order_ON: Tensor, clusters: int) -> Coarse:
    new, curves, voxels = code_ON.new_empty, *code_ON.shape
    return (
        new(curves, clusters), new(curves, clusters), new(curves, clusters), new(voxels), new(clusters + 1),
        new(clusters),
    )  # fmt: skip


_coarsen = Kernel(
    "coarsen",
    "(Tensor code, Tensor order, int clusters) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("inductor", compiled(_counted)),
        Implementation("torch", _counted, devices=("cpu", "cuda")),
    ),
    rows=lambda code_ON, *_: code_ON.shape[1],
)


def coarsen(code_ON: Tensor, order_ON: Tensor, clusters: int, *, impl: str | None = None) -> Coarse:
    """(code [O, M], order [O, M], inverse [O, M], cluster [N], idx_ptr [M + 1], head [M]), int64, of what
    `serialize` returns and of as many clusters as there are.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _coarsen(code_ON, order_ON, clusters, impl=impl)
