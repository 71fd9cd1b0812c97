"""The largest value of every feature over the rows of a segment.

    y[m, d] = max x[indices[i], d]        idx_ptr[m] <= i < idx_ptr[m + 1]

N rows · M segments, none of them empty · D features. Exact; NaN stays NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def _reference(x_ND: Tensor, indices_N: Tensor, idx_ptr_M1: Tensor) -> Tensor:
    rows_ID = x_ND[indices_N]
    return torch.segment_reduce(rows_ID, "max", offsets=idx_ptr_M1, axis=0, unsafe=True)


def _scatter(x_ND: Tensor, indices_N: Tensor, idx_ptr_M1: Tensor) -> Tensor:
    """Every row is put where its segment is."""
    segments = len(idx_ptr_M1) - 1
    counts_M = idx_ptr_M1[1:] - idx_ptr_M1[:-1]
    segment_M = torch.arange(segments, device=x_ND.device)
    segment_I = segment_M.repeat_interleave(counts_M, output_size=len(indices_N))
    rows_ID = x_ND[indices_N]
    y_MD = x_ND.new_full((segments, x_ND.shape[1]), -torch.inf)
    return y_MD.scatter_reduce_(0, segment_I[:, None].expand_as(rows_ID), rows_ID, "amax")


_segment_max = Kernel(
    "segment_max",
    "(Tensor x, Tensor indices, Tensor idx_ptr) -> Tensor",
    _reference,
    fake=lambda x_ND, indices_N, idx_ptr_M1: x_ND.new_empty(len(idx_ptr_M1) - 1, x_ND.shape[1]),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _scatter, devices=("cpu", "cuda")),
    ),
    rows=lambda x_ND, *_: len(x_ND),
)


def segment_max(x_ND: Tensor, indices_N: Tensor, idx_ptr_M1: Tensor, *, impl: str | None = None) -> Tensor:
    """[M, D], contiguous, in the dtype of x; int64 indices, and idx_ptr from 0 to their number.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _segment_max(x_ND, indices_N, idx_ptr_M1, impl=impl)
