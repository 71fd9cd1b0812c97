"""The largest value of every feature over the rows of each segment.

    y[m, d] = max src[indices[i], d]        indptr[m] <= i < indptr[m + 1]

N rows, M segments of at least one row, D features; y has the dtype of src. Exact.
Mirrors torch_scatter.segment_csr with reduce="max", of rows in an order.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class SegmentMax(nn.Module):
    def forward(self, src: Tensor, indices: Tensor, indptr: Tensor) -> Tensor:
        """[N, D], int64 [N], int64 [M + 1] from 0 to N -> [M, D]"""
        return kernels.segment_max(src, indices, indptr)
