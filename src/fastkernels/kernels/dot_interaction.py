"""The products of all pairs of a sample's vectors, behind the first of them.

    z = [h; e_1; ...; e_F],  p_ij = z_i . z_j                o[b] = [h | p_01 .. p_0F | p_12 .. p_1F | .. ]

B samples · F features · D of a vector. Of the Gram matrix the strict upper triangle, row by row:
F (F + 1) / 2 products. Summed in float32 (float64 stays float64), rounded once to the dtype of h.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _reference(dense_BD: Tensor, sparse_BFD: Tensor) -> Tensor:
    wide = torch.promote_types(dense_BD.dtype, torch.float32)
    z_BND = torch.cat((dense_BD[:, None], sparse_BFD), 1).to(wide)
    gram_BNN = (z_BND @ z_BND.transpose(1, 2)).to(dense_BD.dtype)
    return torch.cat((dense_BD, _upper(gram_BNN)), 1)


def _torch(dense_BD: Tensor, sparse_BFD: Tensor) -> Tensor:
    """A batched product, a gather and two concatenations."""
    z_BND = torch.cat((dense_BD[:, None], sparse_BFD), 1)
    return torch.cat((dense_BD, _upper(torch.bmm(z_BND, z_BND.transpose(1, 2)))), 1)


def _upper(gram_BNN: Tensor) -> Tensor:
    vectors = gram_BNN.shape[1]
    row_P, column_P = torch.triu_indices(vectors, vectors, offset=1, device=gram_BNN.device)
    return gram_BNN[:, row_P, column_P]


def width(num_features: int, dim: int) -> int:
    """Of a row of the result."""
    return dim + num_features * (num_features + 1) // 2


_dot_interaction = Kernel(
    "dot_interaction",
    "(Tensor dense, Tensor sparse) -> Tensor",
    _reference,
    fake=lambda dense_BD, sparse_BFD: dense_BD.new_empty(
        dense_BD.shape[0], width(sparse_BFD.shape[1], dense_BD.shape[1])
    ),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_torch)),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda dense_BD, _: dense_BD.shape[0],
    work=lambda tally, dense_BD, sparse_BFD: tally.multiply(
        dense_BD, dense_BD.numel() * sparse_BFD.shape[1] * (sparse_BFD.shape[1] + 1)
    ),
)


def dot_interaction(dense_BD: Tensor, sparse_BFD: Tensor, *, impl: str | None = None) -> Tensor:
    """[B, D + F (F + 1) / 2], contiguous, of h [B, D] and e [B, F, D] of one dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError for vectors of other sizes.
    """
    batch, dim = dense_BD.shape
    if sparse_BFD.shape[::2] != (batch, dim):
        raise ValueError(f"sparse must be [{batch}, F, {dim}] as dense is, not {list(sparse_BFD.shape)}")
    return _dot_interaction(dense_BD, sparse_BFD, impl=impl)
