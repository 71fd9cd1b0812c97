"""Products of a layer that is split over the ranks of the group in flight, with what the ranks exchange.

    y = sum_r x_r W_r^T                                 gemm_all_reduce: split by inputs
    y = rows [i T/R, (i + 1) T/R) of that, on rank i    gemm_reduce_scatter
    y = (x_0, x_1, ... one below the other) W_i^T       all_gather_gemm: split by outputs, on rank i

R ranks · T tokens · K inputs and N outputs of a rank's part. x_r is [T, K], in all_gather_gemm [T / R, K].
W_r is [N, K], rank r's own. Products accumulate in at least float32, and are rounded before they travel.
`parts` makes the product and the exchange one after the other, `overlapped` at the same time
(parallel_gemm_overlap.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import symmetric
from fastkernels.kernels.all_gather import all_gather
from fastkernels.kernels.all_reduce import all_reduce
from fastkernels.kernels.base import Implementation, Kernel, registered
from fastkernels.kernels.group import group
from fastkernels.kernels.linear import linear
from fastkernels.kernels.reduce_scatter import divided, reduce_scatter
from fastkernels.kernels.work import Tally

_OVERLAP = "fastkernels.kernels.parallel_gemm_overlap"


def _reference_gemm_all_reduce(x_TK: Tensor, weight_NK: Tensor) -> Tensor:
    return registered["all_reduce"].reference(x_TK @ weight_NK.T)


def _reference_gemm_reduce_scatter(x_TK: Tensor, weight_NK: Tensor) -> Tensor:
    return registered["reduce_scatter"].reference(x_TK @ weight_NK.T, 0)


def _reference_all_gather_gemm(x_PK: Tensor, weight_NK: Tensor) -> Tensor:
    return torch.cat(group().gather(x_PK)) @ weight_NK.T


def _library_unsupported(x: Tensor, weight: Tensor) -> str | None:
    return symmetric.unshared()


def _library_gemm_reduce_scatter(x_TK: Tensor, weight_NK: Tensor) -> Tensor:
    fused = torch.ops.symm_mem.fused_matmul_reduce_scatter
    return fused(x_TK, weight_NK.T, "sum", 0, symmetric.group_name())


def _library_all_gather_gemm(x_PK: Tensor, weight_NK: Tensor) -> Tensor:
    fused = torch.ops.symm_mem.fused_all_gather_matmul
    return fused(x_PK, [weight_NK.T], 0, symmetric.group_name(), return_A=False)[1][0]


def _work(tally: Tally, x: Tensor, weight_NK: Tensor, rows: int, received: int) -> None:
    tally.multiply(x, 2 * rows * weight_NK.numel())
    tally.received += received * x.element_size()


def _work_gemm_all_reduce(tally: Tally, x_TK: Tensor, weight_NK: Tensor) -> None:
    _work(tally, x_TK, weight_NK, len(x_TK), len(x_TK) * len(weight_NK))


def _work_gemm_reduce_scatter(tally: Tally, x_TK: Tensor, weight_NK: Tensor) -> None:
    _work(tally, x_TK, weight_NK, len(x_TK), len(x_TK) * len(weight_NK) // group().size)


def _work_all_gather_gemm(tally: Tally, x_PK: Tensor, weight_NK: Tensor) -> None:
    _work(tally, x_PK, weight_NK, group().size * len(x_PK), (group().size - 1) * x_PK.numel())


_gemm_all_reduce = Kernel(
    "gemm_all_reduce",
    "(Tensor x, Tensor weight) -> Tensor",
    _reference_gemm_all_reduce,
    fake=lambda x_TK, weight_NK: x_TK.new_empty((x_TK.shape[0], weight_NK.shape[0])),
    implementations=(
        Implementation("parts", lambda x, w: all_reduce(linear(x, w)), devices=("cpu", "cuda")),
        Implementation("overlapped", _OVERLAP),
    ),
    rows=lambda x_TK, _: x_TK.shape[0],
    work=_work_gemm_all_reduce,
)

_gemm_reduce_scatter = Kernel(
    "gemm_reduce_scatter",
    "(Tensor x, Tensor weight) -> Tensor",
    _reference_gemm_reduce_scatter,
    fake=lambda x_TK, weight_NK: x_TK.new_empty((x_TK.shape[0] // group().size, weight_NK.shape[0])),
    implementations=(
        Implementation("parts", lambda x, w: reduce_scatter(linear(x, w), 0), devices=("cpu", "cuda")),
        Implementation("overlapped", _OVERLAP),
        Implementation("torch", _library_gemm_reduce_scatter, unsupported=_library_unsupported),
    ),
    rows=lambda x_TK, _: x_TK.shape[0],
    work=_work_gemm_reduce_scatter,
)

_all_gather_gemm = Kernel(
    "all_gather_gemm",
    "(Tensor x, Tensor weight) -> Tensor",
    _reference_all_gather_gemm,
    fake=lambda x_PK, weight_NK: x_PK.new_empty((x_PK.shape[0] * group().size, weight_NK.shape[0])),
    implementations=(
        Implementation("parts", lambda x, w: linear(all_gather(x, 0), w), devices=("cpu", "cuda")),
        Implementation("overlapped", _OVERLAP),
        Implementation("torch", _library_all_gather_gemm, unsupported=_library_unsupported),
    ),
    rows=lambda x_PK, _: x_PK.shape[0],
    work=_work_all_gather_gemm,
)


def gemm_all_reduce(x_TK: Tensor, weight_NK: Tensor, *, impl: str | None = None) -> Tensor:
    """[T, K], [N, K] -> [T, N] in their dtype, the same bits on every rank.

    A collective: every rank of the group must call it. Raises KernelError when `impl` cannot serve the call,
    RuntimeError without a group.
    """
    return _gemm_all_reduce(x_TK, weight_NK, impl=impl)


def gemm_reduce_scatter(x_TK: Tensor, weight_NK: Tensor, *, impl: str | None = None) -> Tensor:
    """[T, K], [N, K] -> [T / R, N]. As gemm_all_reduce; ValueError where the ranks do not divide T."""
    divided(x_TK.shape[0], "tokens")
    return _gemm_reduce_scatter(x_TK, weight_NK, impl=impl)


def all_gather_gemm(x_PK: Tensor, weight_NK: Tensor, *, impl: str | None = None) -> Tensor:
    """[P, K], [N, K] -> [R P, N]: P tokens of each rank. As gemm_all_reduce."""
    return _all_gather_gemm(x_PK, weight_NK, impl=impl)
