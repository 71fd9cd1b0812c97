"""dot_interaction in Triton: a program for a sample, whose vectors and products stay on the chip.

B samples · N vectors, the dense one first · D of a vector.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.dot_interaction import width
from fastkernels.kernels.launch import power_of_two

MOST_ELEMENTS = 1 << 14  # of a sample's vectors: 64 KiB of float32 in shared memory
SMALLEST_SIDE = 16  # of a product on tensor cores
ONE_WARP = 1 << 11  # elements of vectors that one warp serves


def unsupported(kernel: str, dense_BD: Tensor, sparse_BFD: Tensor) -> str | None:
    vectors, dim = power_of_two(sparse_BFD.shape[1] + 1), power_of_two(dense_BD.shape[1])
    if vectors * dim > MOST_ELEMENTS:
        return f"holds {MOST_ELEMENTS} elements of a sample, not {vectors} x {dim}"
    if not (dense_BD.is_contiguous() and sparse_BFD.is_contiguous()):
        return "needs contiguous tensors"
    return checks.not_float32_compute(dense_BD, sparse_BFD)


@triton.jit
def _interact(dense, sparse, out, N: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr,
              VECTORS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    vector, column = tl.arange(0, VECTORS), tl.arange(0, WIDTH)
    is_column = column < D
    h = tl.load(dense + sample * D + column, mask=is_column, other=0.0)
    e_at = sparse + (sample * (N - 1) + vector[:, None] - 1) * D + column[None, :]
    is_sparse = (vector > 0)[:, None] & (vector < N)[:, None] & is_column[None, :]
    z = tl.where((vector == 0)[:, None], h[None, :], tl.load(e_at, mask=is_sparse, other=0.0))
    gram = tl.dot(z, tl.trans(z), input_precision="ieee")
    row_at = out + sample * (D + PAIRS)
    tl.store(row_at + column, h, mask=is_column)
    # (i, j) lies behind the i (2 N - i - 1) / 2 pairs of earlier rows.
    i, j = vector[:, None], vector[None, :]
    place = i * (2 * N - i - 1) // 2 + j - i - 1
    tl.store(row_at + D + place, gram.to(out.dtype.element_ty), mask=(i < j) & (j < N))


def dot_interaction(dense_BD: Tensor, sparse_BFD: Tensor) -> Tensor:
    batch, dim = dense_BD.shape
    features = sparse_BFD.shape[1]
    out_BO = dense_BD.new_empty(batch, width(features, dim))
    if out_BO.numel() == 0:
        return out_BO
    vectors, columns = (max(SMALLEST_SIDE, power_of_two(side)) for side in (features + 1, dim))
    _interact[(batch,)](
        dense_BD, sparse_BFD, out_BO, N=features + 1, D=dim, PAIRS=features * (features + 1) // 2,
        VECTORS=vectors, WIDTH=columns, num_warps=1 if vectors * columns <= ONE_WARP else 4,
    )  # fmt: skip
    return out_BO
