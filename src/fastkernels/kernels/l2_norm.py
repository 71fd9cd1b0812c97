"""Rows as directions: each divided by its length.

    y = x / max(|x|, eps)          |x| = sqrt(sum_d x[d]^2);  y = 0 for a row that is not kept

T rows · D row width. In float32 (float64 stays float64), rounded once to the dtype of x. A row of zeros stays
one, and what a row holds that is not kept does not matter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.providers import PROVIDERS


def _kept(x_TD: Tensor, keep_T: Tensor | None) -> Tensor:
    """In at least float32, rows that are not kept as zeros."""
    x = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
    return x if keep_T is None else torch.where(keep_T[..., None], x, 0.0)


def _reference(x_TD: Tensor, keep_T: Tensor | None, eps: float) -> Tensor:
    x = _kept(x_TD, keep_T)
    return (x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=eps)).to(x_TD.dtype).contiguous()


def _torch(x_TD: Tensor, keep_T: Tensor | None, eps: float) -> Tensor:
    """Widened before: float16 has no 1e-12, and PyTorch rounds a length to the dtype of its row."""
    return F.normalize(_kept(x_TD, keep_T), dim=-1, eps=eps).to(x_TD.dtype).contiguous()


_l2_norm = Kernel(
    "l2_norm",
    "(Tensor x, Tensor? keep, float eps) -> Tensor",
    _reference,
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
        Implementation("inductor", compiled(_reference)),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)


def l2_norm(
    x_TD: Tensor, keep_T: Tensor | None = None, eps: float = 1e-12, *, impl: str | None = None
) -> Tensor:
    """Each row over its length, contiguous, in x's shape and dtype; any number of dimensions before the last.
    keep: bool, the shape of x without its last dimension; rows where it is false are zeros.

    Raises KernelError when `impl` cannot serve the call, ValueError for a `keep` of another shape or dtype.
    """
    if keep_T is not None and (keep_T.dtype != torch.bool or keep_T.shape != x_TD.shape[:-1]):
        raise ValueError(
            f"keep must be bool {list(x_TD.shape[:-1])}, as many as x of {list(x_TD.shape)} has rows, "
            f"not {keep_T.dtype} {list(keep_T.shape)}"
        )
    return _l2_norm(x_TD, keep_T, eps, impl=impl)
