"""A sparse matrix in compressed rows times a dense one, alone or added to a sum as it is made.

    y[r] = sum_{s[r] <= e < s[r + 1]} values[e] x[columns[e]]                              sparse_mm
    y as above,  total' = total + alpha y                                                  sparse_mm_add

R rows · E entries · N rows of x · D columns of x. A row without entries is zero; the columns of a row are in
any order, and one that is there twice counts twice. Summed in float32 (float64 stays float64), rounded once
to the dtype of x.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def _sums(starts_R1: Tensor, columns_E: Tensor, values_E: Tensor, x_ND: Tensor) -> Tensor:
    """[R, D] of products, not rounded."""
    wide = torch.promote_types(x_ND.dtype, torch.float32)
    rows = starts_R1.numel() - 1
    row_E = torch.arange(rows, device=x_ND.device).repeat_interleave(starts_R1.long().diff())
    y_RD = x_ND.new_zeros(rows, x_ND.shape[1], dtype=wide)
    return y_RD.index_add_(0, row_E, values_E.to(wide)[:, None] * x_ND[columns_E].to(wide))


def _reference(starts_R1: Tensor, columns_E: Tensor, values_E: Tensor, x_ND: Tensor) -> Tensor:
    return _sums(starts_R1, columns_E, values_E, x_ND).to(x_ND.dtype)


def _reference_add(
    starts_R1: Tensor, columns_E: Tensor, values_E: Tensor, x_ND: Tensor, total_RD: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    y_RD = _sums(starts_R1, columns_E, values_E, x_ND)
    return y_RD.to(x_ND.dtype), (total_RD.to(y_RD.dtype) + alpha * y_RD).to(x_ND.dtype)


def _library_unsupported(
    starts_R1: Tensor, columns_E: Tensor, values_E: Tensor, x: Tensor, *_: Any
) -> str | None:
    if x.device.type == "cpu" and x.dtype not in (torch.float32, torch.float64):
        return f"PyTorch multiplies float32 and float64 on a CPU, not {x.dtype}"
    places = (starts_R1.numel() - 1) * x.shape[0]
    if x.is_cuda and columns_E.numel() > places:
        return f"cuSPARSE takes at most one entry for each of {places} places, not {columns_E.numel()}"
    return None


def _library(starts_R1: Tensor, columns_E: Tensor, values_E: Tensor, x_ND: Tensor) -> Tensor:
    """cuSPARSE on a GPU, MKL on a CPU."""
    shape = (starts_R1.numel() - 1, x_ND.shape[0])
    with warnings.catch_warnings():
        # Of a beta state, and of invariants that are not checked, as asked for.
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
        matrix_RN = torch.sparse_csr_tensor(starts_R1, columns_E, values_E, shape, check_invariants=False)
    return matrix_RN @ x_ND


def _library_add(
    starts_R1: Tensor, columns_E: Tensor, values_E: Tensor, x_ND: Tensor, total_RD: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """The sum is a kernel of its own, and y is rounded before it."""
    y_RD = _library(starts_R1, columns_E, values_E, x_ND)
    return y_RD, torch.add(total_RD, y_RD, alpha=alpha)


def _work(tally: Any, starts_R1: Tensor, columns_E: Tensor, values_E: Tensor, x_ND: Tensor, *_: Any) -> None:
    tally.multiply(x_ND, 2 * columns_E.numel() * x_ND.shape[1])


_sparse_mm = Kernel(
    "sparse_mm",
    "(Tensor starts, Tensor columns, Tensor values, Tensor x) -> Tensor",
    _reference,
    fake=lambda starts_R1, columns_E, values_E, x_ND: x_ND.new_empty(starts_R1.numel() - 1, x_ND.shape[1]),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("cusparse", _library, unsupported=_library_unsupported),
        Implementation("torch", _library, devices=("cpu",), unsupported=_library_unsupported),
    ),
    rows=lambda starts_R1, *_: starts_R1.numel() - 1,
    work=_work,
)

_sparse_mm_add = Kernel(
    "sparse_mm_add",
    "(Tensor starts, Tensor columns, Tensor values, Tensor x, Tensor total, float alpha) -> (Tensor, Tensor)",
    _reference_add,
    fake=lambda starts_R1, columns_E, values_E, x_ND, total_RD, alpha: (
        x_ND.new_empty(total_RD.shape),
        x_ND.new_empty(total_RD.shape),
    ),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("cusparse", _library_add, unsupported=_library_unsupported),
        Implementation("torch", _library_add, devices=("cpu",), unsupported=_library_unsupported),
    ),
    rows=lambda starts_R1, *_: starts_R1.numel() - 1,
    work=_work,
)


def sparse_mm(
    starts_R1: Tensor, columns_E: Tensor, values_E: Tensor, x_ND: Tensor, *, impl: str | None = None
) -> Tensor:
    """[R, D], contiguous. starts [R + 1] and columns [E] of one of int32 and int64, starts from 0 to E and
    never falling, columns each in [0, N); values [E] and x [N, D] of one dtype, x contiguous.

    Raises KernelError when `impl` cannot serve the call. What starts and columns hold is not looked at: the
    host would wait for a GPU.
    """
    return _sparse_mm(starts_R1, columns_E, values_E, x_ND, impl=impl)


def sparse_mm_add(
    starts_R1: Tensor,
    columns_E: Tensor,
    values_E: Tensor,
    x_ND: Tensor,
    total_RD: Tensor,
    alpha: float,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(y, total + alpha y), both [R, D] and new; total as y is, the rest as in sparse_mm."""
    return _sparse_mm_add(starts_R1, columns_E, values_E, x_ND, total_RD, alpha, impl=impl)
