"""A sparse matrix in compressed rows times a dense one.

    y[r] = sum_{s[r] <= e < s[r + 1]} values[e] x[columns[e]]

R rows, E entries, N rows of x, D columns; s are crow_indices, columns col_indices, x is `other`. A row
without entries gives zeros; an entry that is there twice counts twice. Summed in at least float32; y has the
dtype of x.
Mirrors torch_geometric.utils.spmm with reduce="sum"; torch.sparse.mm of a CSR tensor.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class SparseMM(nn.Module):
    def forward(self, crow_indices: Tensor, col_indices: Tensor, values: Tensor, other: Tensor) -> Tensor:
        """int32 or int64 [R + 1] and [E], [E], [N, D] -> [R, D]"""
        return kernels.sparse_mm(crow_indices, col_indices, values, other)
